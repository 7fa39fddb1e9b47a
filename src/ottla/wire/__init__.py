"""Kafka's wire formats: bytes to Arrow columns and back. No sockets, clocks, threads or logging here."""
