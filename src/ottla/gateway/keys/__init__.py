"""Idempotency keys: a request that comes again under its key is answered from memory and not written again.

`table.py` (pure) has the keys that are done and how they look in their topic; `writer.py` writes requests and keys in
one transaction.
"""
