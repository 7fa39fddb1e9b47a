"""Gateways into Kafka: HTTP, a socket to write and forget, syslog. One process, one producer, one spool.

`intake.py` is the way into Kafka that all of them share. `http` answers requests, `datagram` takes messages to forget,
`syslog` takes log lines. Nothing here prints; `ottla.cli` does.
"""
