"""`peeklock demo`: the main job on real input, with the official client, and the broker killed in between.

`story` tells it; `broker` starts and kills `peeklock serve`; `jobs` is the work; `ledger` keeps the account
that the verdict comes from; `client` sends jobs and works them off; `display` shows it. The official client
is imported in `client` alone, so that a machine without it gets a sentence and no traceback.
"""
