"""The process of one peer of the producer benchmark."""

from __future__ import annotations

from bench.peers.jobs import serve
from bench.peers.produce import Job

if __name__ == "__main__":
    serve("bench.peers.produce", Job)
