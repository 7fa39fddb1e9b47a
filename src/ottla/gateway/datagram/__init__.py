"""A socket to write to and forget: messages in dory's format, by unix datagram, unix stream and loopback TCP.

`format.py` is the format, `reading.py` many messages at once, `listener.py` the sockets; `discards.py` counts what was
not delivered, `pages.py` shows it as dory does.
"""
