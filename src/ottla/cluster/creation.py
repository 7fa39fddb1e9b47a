"""Compares the requested cluster with the one on disk, and creates, resumes or repairs it.

The request of a caller and the folder, with its lock held, come in; a running cluster and how it came to run go out.
Leftovers of dead programs are removed on the way, but never data that may still be needed.
"""

from __future__ import annotations

import logging
import random
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from ottla.cluster import lifecycle
from ottla.cluster.guard import start_guard
from ottla.cluster.jars import Progress
from ottla.cluster.pinned import DEFAULT_VERSION, pinned_jars
from ottla.cluster.ports import free_ports
from ottla.cluster.process import Life, ProcessId, life
from ottla.cluster.security import USERS
from ottla.cluster.state import ClusterFolder, ClusterState, Phase, RedisState
from ottla.errors import ConfigError, LocalClusterError
from ottla.net import Deadline

logger = logging.getLogger(__name__)

DEFAULT_HEAP_BYTES = 512 << 20
_MAX_BROKERS = 50


class Start(Enum):
    """How a cluster came to run."""

    NOTHING = "everything was already running"
    MISSING = "the missing processes were started"
    RESUMED = "it was started with its existing data"
    FRESH = "it was created"


@dataclass(frozen=True, slots=True, kw_only=True)
class JarSource:
    """Where the jars come from, and who gets the download progress."""

    maven_url: str | None = None
    progress: Progress | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRequest:
    """The cluster that a caller asked for. None means the existing value, or the default for a new cluster.

    Raises `ConfigError` for invalid values.
    """

    cache_dir: Path
    brokers: int | None = None
    version: str | None = None
    heap_bytes: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    racks: tuple[str, ...] = ()
    redis: bool = False
    secure: bool = False
    plaintext: bool | None = None
    """Whether clients may connect without credentials; None means yes, unless the cluster is secure."""
    port: int | None = None
    """Where broker 1 listens for clients; the others follow by id. None means free ports."""

    @property
    def open(self) -> bool:
        """Whether a new cluster has a plaintext listener."""
        return not self.secure if self.plaintext is None else self.plaintext

    def __post_init__(self) -> None:
        if self.brokers is not None and not 1 <= self.brokers <= _MAX_BROKERS:
            raise ConfigError(f"{self.brokers} brokers requested: a local cluster has 1 to {_MAX_BROKERS}")
        if self.heap_bytes is not None and self.heap_bytes < 128 << 20:
            raise ConfigError(f"heap_bytes is {self.heap_bytes}: a broker needs at least {128 << 20} bytes")
        if not all(rack and rack == rack.strip() for rack in self.racks):
            raise ConfigError(f"racks are {', '.join(map(repr, self.racks))}: a rack has a name")
        if self.port is not None and not 1 <= self.port <= 65536 - (self.brokers or 1):
            raise ConfigError(f"port is {self.port}: the ports of {self.brokers or 1} brokers must be from 1 to 65535")
        if self.version is not None:
            pinned_jars(self.version)
        if not self.secure and not self.open:
            raise ConfigError("plaintext=False needs secure=True: there would be no listener for clients")

    def new_state(self, name: str, rng: random.Random) -> ClusterState:
        """Return a new cluster as requested, on free ports, without processes."""
        return ClusterState(
            name=name,
            cluster_id=lifecycle.fresh_cluster_id(),
            version=self.version or DEFAULT_VERSION,
            phase=Phase.STARTING,
            nodes=lifecycle.fresh_nodes(
                self.brokers or 1, is_open=self.open, secure=self.secure, first_port=self.port, rng=rng
            ),
            first_port=self.port,
            cache_dir=str(self.cache_dir),
            heap_bytes=self.heap_bytes or DEFAULT_HEAP_BYTES,
            settings=dict(self.settings),
            racks=self.racks,
            users={user: secrets.token_urlsafe(12) for user in USERS} if self.secure else {},
            internal_password=secrets.token_urlsafe(24) if self.secure else "",
            redis=RedisState(free_ports(1, rng)[0]) if self.redis else None,
        )

    def require(self, state: ClusterState) -> None:
        """Raise `LocalClusterError` if an existing cluster differs from the requested one."""
        differences = [
            f"{label} {actual}, not {requested}"
            for label, actual, requested in (
                ("brokers:", len(state.nodes), self.brokers),
                ("Kafka", state.version, self.version),
                ("heap bytes:", state.heap_bytes, self.heap_bytes),
                ("settings:", dict(state.settings), dict(self.settings) or None),
                ("racks:", ", ".join(state.racks), ", ".join(self.racks) or None),
                ("secure:", state.secure, self.secure or None),
                ("plaintext:", state.open, self.plaintext),
                ("redis:", state.redis is not None, self.redis or None),
                ("first port:", state.nodes[0].address.port, self.port),
            )
            if requested is not None and requested != actual
        ]
        if differences:
            raise LocalClusterError(
                f"cluster {state.name!r} exists already and differs ({'; '.join(differences)}):"
                " take it down first, or choose another name"
            )


def bring_up(
    folder: ClusterFolder,
    request: ClusterRequest,
    *,
    owner: ProcessId | None,
    source: JarSource,
    timeout: float,
    rng: random.Random,
) -> Start:
    """Make the cluster run. `timeout` starts when everything needed has been downloaded.

    Raises `LocalClusterError` if the cluster differs from the request or does not start.
    """
    state = _survivor(folder)
    if state is None:
        state = request.new_state(folder.name, rng)
    else:
        request.require(state)
    dead = [node for node in state.nodes if life(node.process) is Life.DEAD]
    if not dead and (state.redis is None or life(state.redis.process) is not Life.DEAD):
        return Start.NOTHING
    tools = tools_for(state, source)
    deadline = Deadline.after(timeout)
    if len(dead) < len(state.nodes):
        folder.save(lifecycle.start_nodes(state, folder, dead, tools=tools, deadline=deadline))
        return Start.MISSING
    if state.phase is Phase.STARTING:
        _start_fresh(replace(state, owner=owner), folder, tools=tools, deadline=deadline, rng=rng)
        return Start.FRESH
    _resume(state, folder, tools=tools, deadline=deadline, rng=rng)
    return Start.RESUMED


def tools_for(state: ClusterState, source: JarSource) -> lifecycle.Tools:
    """Find everything needed to start processes of this cluster."""
    return lifecycle.find_tools(
        state.version,
        Path(state.cache_dir),
        redis=state.redis is not None,
        base_url=source.maven_url,
        progress=source.progress,
    )


def _start_fresh(
    state: ClusterState,
    folder: ClusterFolder,
    *,
    tools: lifecycle.Tools,
    deadline: Deadline,
    rng: random.Random,
) -> None:
    try:
        folder.save(state)
        if state.owner is not None:
            guard = start_guard(folder, state.owner, environment=dict(tools.java.environment))
            state = replace(state, guard=guard)
        state = lifecycle.start_cluster(state, folder, tools=tools, deadline=deadline, rng=rng)
        folder.save(replace(state, phase=Phase.RUNNING))
    except BaseException:
        lifecycle.end_cluster(folder)
        folder.remove_data()
        raise


def _resume(
    state: ClusterState,
    folder: ClusterFolder,
    *,
    tools: lifecycle.Tools,
    deadline: Deadline,
    rng: random.Random,
) -> None:
    try:
        state = lifecycle.start_cluster(state, folder, tools=tools, deadline=deadline, rng=rng)
        folder.save(replace(state, phase=Phase.RUNNING))
    except BaseException:
        lifecycle.end_cluster(folder)
        folder.save(state.stopped())
        raise


def _survivor(folder: ClusterFolder) -> ClusterState | None:
    """Return the cluster in the folder if it can be used or resumed; remove what a dead program left behind.

    Raises `StateDamaged` for a damaged state file: no crash damages it, and the data beside it may be needed.
    """
    state = folder.load()
    if state is not None and not _abandoned(state):
        return state
    lifecycle.end_cluster(folder)  # Also ends processes whose folder was deleted.
    if folder.path.exists():
        logger.info("removing the leftovers of a dead program in %s", folder.path)
        folder.remove()
    return None


def _abandoned(state: ClusterState) -> bool:
    """Return whether a start was interrupted (the lock is ours, so no one is starting it), or its program is dead."""
    if state.phase is Phase.STARTING:
        return True
    return state.owner is not None and life(state.owner) is Life.DEAD
