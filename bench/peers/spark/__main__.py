"""The process of one peer of the Spark benchmark."""

from __future__ import annotations

from bench.peers.jobs import serve
from bench.peers.spark import Job

if __name__ == "__main__":
    serve("bench.peers.spark", Job)
