"""The process of a peer that does one job after another: requests come on standard input, answers go out, both as JSON.

A peer is a module with `VARIANTS` and `PACED`, functions from a job to a dataclass of figures and to a list of seconds.
What a job is, its package says.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from bench.peers import Unavailable


def serve(package: str, job: Callable[..., Any]) -> None:
    """Do jobs with the peer that the command line names until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a client prints is no answer
    try:
        peer: Any = importlib.import_module(f"{package}.{sys.argv[1]}")
    except ImportError as reason:
        peer = str(reason)
    for line in sys.stdin:
        request = json.loads(line)
        gc.collect()
        print(json.dumps(_answer(peer, request, job(**request["job"]))), file=answers, flush=True)


def _answer(peer: Any, request: dict[str, Any], job: Any) -> dict[str, Any]:
    if isinstance(peer, str):
        return {"skipped": peer}
    try:
        if request["kind"] == "latency":
            return {"seconds": peer.PACED[request["variant"]](job)}
        return asdict(peer.VARIANTS[request["variant"]](job))
    except Unavailable as reason:
        return {"skipped": str(reason)}
