"""Files of keys, and the authority that checks tokens.

authority_manager  The authority of the running broker, kept up to date.
keys               Files of shared access rules: that of `--keys`, and `keys.json` of earlier releases.
rules              Shared access rules: their checks, their JSON, their changes.
jwt_keys           The file that `--jwt` names, and the keys of the issuer of JSON web tokens.
token_issuer       That issuer as its file describes it now.
"""
