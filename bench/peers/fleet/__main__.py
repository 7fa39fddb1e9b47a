"""The process of one node of the fleet benchmark."""

from __future__ import annotations

from bench.peers.fleet import Job
from bench.peers.jobs import serve

if __name__ == "__main__":
    serve("bench.peers.fleet", Job)
