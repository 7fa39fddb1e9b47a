"""One module for each way to copy a topic to another cluster. Each is a program that copies until it is ended.

`python -m bench.peers.mirror NAME JOB` starts one; the job is JSON. The benchmark watches the target's log and the
processor time of the process from outside, so that a JVM can be measured in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run: all records of `topic`, to a topic that is called `prefix` and a dot and the same."""

    source: str
    target: str
    topic: str
    prefix: str
    codec: str
    partitions: int
    folder: str
    """For files of the peer."""
