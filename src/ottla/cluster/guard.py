"""Removes the cluster of a program that died without cleaning up: killed, crashed, its `with` block never left.

The folder of a cluster and its owner process come in. A shell, which costs almost nothing, waits for the end of that
process and then becomes this module. It does not touch a cluster that was taken down or started again in the meantime.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ottla.cluster import lifecycle, process
from ottla.cluster.process import Life, ProcessId, life
from ottla.cluster.state import ClusterFolder, StateDamaged

# A dead process whose parent has not reaped it yet (a zombie) still has its pid.
_WAIT = 'while kill -0 "$1" 2>/dev/null && ! grep -qs "^State:.Z" "/proc/$1/status"; do sleep 1; done; shift; exec "$@"'
_LOCK_TIMEOUT = 600.0


def start_guard(folder: ClusterFolder, owner: ProcessId, *, environment: dict[str, str]) -> ProcessId:
    """Start watching `owner`. The guard ends with the cluster, or ends it."""
    watch = [sys.executable, "-m", __name__, str(folder.base), folder.name, str(owner.pid), owner.started]
    log = folder.path / "logs" / "guard.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    return process.spawn(
        ["/bin/sh", "-c", _WAIT, "ottla-guard", str(owner.pid), *watch], log=log, environment=environment
    )


def remove_orphan(folder: ClusterFolder, owner: ProcessId) -> bool:
    """Take the cluster down if it still belongs to `owner` and `owner` is dead."""
    with folder.locked(timeout=_LOCK_TIMEOUT):
        try:
            state = folder.load()
        except StateDamaged:
            return False
        if state is None or state.owner != owner or life(owner) is not Life.DEAD:
            return False
        lifecycle.end_cluster(folder)
        folder.remove()
    return True


if __name__ == "__main__":
    base, name, pid, started = sys.argv[1:]
    remove_orphan(ClusterFolder(Path(base), name), ProcessId(int(pid), started))
