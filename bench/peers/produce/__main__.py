"""The process of one peer: jobs come on standard input, one JSON object on each line, and so do the answers go out."""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from dataclasses import asdict
from typing import Any

from bench.peers import Unavailable
from bench.peers.produce import Job


def main() -> None:
    """Do one job after another until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a client prints is no answer
    try:
        peer: Any = importlib.import_module(f"bench.peers.produce.{sys.argv[1]}")
    except ImportError as reason:
        peer = str(reason)
    for line in sys.stdin:
        request = json.loads(line)
        gc.collect()
        print(json.dumps(_answer(peer, request)), file=answers, flush=True)


def _answer(peer: Any, request: dict[str, Any]) -> dict[str, Any]:
    if isinstance(peer, str):
        return {"skipped": peer}
    job = Job(**request["job"])
    try:
        if request["kind"] == "latency":
            return {"seconds": peer.PACED[request["variant"]](job)}
        return asdict(peer.VARIANTS[request["variant"]](job))
    except Unavailable as reason:
        return {"skipped": str(reason)}


if __name__ == "__main__":
    main()
