"""The process of one peer of the consumer benchmark."""

from __future__ import annotations

from bench.peers.consume import Job
from bench.peers.jobs import serve

if __name__ == "__main__":
    serve("bench.peers.consume", Job)
