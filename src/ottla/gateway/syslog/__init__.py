"""Syslog into Kafka: UDP, TCP, TLS and unix sockets, RFC 5424 and RFC 3164.

`parsing.py` finds the fields of many messages at once, `rules.py` chooses topics, `shapes.py` makes records,
`listener.py` owns the sockets. What cannot be parsed goes on as it came, marked.
"""
