"""Run one peer in this process until it is ended."""

from __future__ import annotations

import importlib
import json
import sys

from bench.peers.mirror import Job

if __name__ == "__main__":
    importlib.import_module(f"bench.peers.mirror.{sys.argv[1]}").run(Job(**json.loads(sys.argv[2])))
