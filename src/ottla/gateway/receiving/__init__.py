"""Receives messages for listeners that answer nothing: datagrams and streams, many messages in one piece of memory.

`sockets.py` opens, `datagrams.py` and `streams.py` are threads that receive, `receivers.py` are all of a listener,
`arrivals.py` is what they hand over.
Nothing here knows what a message means.
"""
