"""Removes the cluster of a program that died without a word: killed, crashed, its `with` block never left.

In comes the folder of a cluster and the process it belongs to; a shell, which costs next to nothing, waits for the end
of that process and then becomes this module. It touches nothing that has been taken down or started again meanwhile.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ottla.cluster import lifecycle, process
from ottla.cluster.process import Life, ProcessId, life
from ottla.cluster.state import ClusterFolder, StateDamaged

# A dead process that its parent has not asked about yet (a zombie) still has its pid.
_WAIT = 'while kill -0 "$1" 2>/dev/null && ! grep -qs "^State:.Z" "/proc/$1/status"; do sleep 1; done; shift; exec "$@"'
_LOCK_TIMEOUT = 600.0


def start_guard(folder: ClusterFolder, owner: ProcessId, *, environment: dict[str, str]) -> ProcessId:
    """Start the watch over `owner`; it ends with the cluster, or ends it."""
    watch = [sys.executable, "-m", __name__, str(folder.base), folder.name, str(owner.pid), owner.started]
    log = folder.path / "logs" / "guard.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    return process.spawn(
        ["/bin/sh", "-c", _WAIT, "ottla-guard", str(owner.pid), *watch], log=log, environment=environment
    )


def remove_orphan(folder: ClusterFolder, owner: ProcessId) -> bool:
    """Take the cluster down if it still belongs to `owner` and `owner` is gone."""
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
