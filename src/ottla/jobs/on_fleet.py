"""Jobs of your own on a fleet: `run` distributes a job to the nodes that `serve` its `Kind`.

`open_store` opens the store in which they meet. The engine itself is `engines.fleet.jobs`.
"""

from __future__ import annotations

from ottla.engines.fleet.job_notes import Kind
from ottla.engines.fleet.jobs import run, serve
from ottla.engines.fleet.store import open_store

__all__ = ["Kind", "open_store", "run", "serve"]
