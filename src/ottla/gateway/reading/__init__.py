"""Reading topics for clients of the gateway, without HTTP: no positions are kept here, clients bring theirs.

`places.py` has cursors, `log_reader.py` reads from brokers (blocking), `readers.py` runs that for many clients within
bounded memory, `news.py` waits for new records, `rendering.py` makes bodies of records.
"""
