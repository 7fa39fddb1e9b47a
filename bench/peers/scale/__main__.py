"""The process of one peer of the scale benchmark."""

from __future__ import annotations

from bench.peers.jobs import serve
from bench.peers.scale import Job

if __name__ == "__main__":
    serve("bench.peers.scale", Job)
