"""The process of the audit benchmark."""

from __future__ import annotations

from bench.peers.audit import Job
from bench.peers.jobs import serve

if __name__ == "__main__":
    serve("bench.peers.audit", Job)
