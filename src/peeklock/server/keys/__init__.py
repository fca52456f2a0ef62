"""Files of keys, and the authority that checks tokens.

authority_manager  The authority of the running broker, kept up to date.
keys               The file of the namespace's shared access rules, `keys.json`.
rules              Shared access rules: their checks, their JSON, their changes.
jwt_keys           The file that `--jwt` names, and the keys of the issuer of JSON web tokens.
token_issuer       That issuer as its file describes it now.
"""
