"""Processes of the gateway benchmark: what people write themselves, a bare endpoint, and the load.

Each server prints its port and runs until it is ended. `load.py` is the client of all of them.
"""
