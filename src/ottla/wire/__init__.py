"""Bytes to columns and back, without sockets, clocks, threads or logging."""
