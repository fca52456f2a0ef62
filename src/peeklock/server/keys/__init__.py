"""The files of keys, and the authority that the running broker checks tokens with.

authority_manager  The authority of the running broker, kept true: keys of the file, rules of the entities,
                   web tokens.
jwt_keys           The file that says whose JSON web tokens are taken, and the keys to verify them with.
keys               The file of the namespace's shared access rules, `keys.json` in the data folder.
"""
