"""The status of a local cluster, as frozen values for programs and for the command line.

A folder and the process table come in; a `ClusterStatus` goes out. Reading the status changes nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from ottla.cluster.process import Life, life, memory_bytes
from ottla.cluster.redis import password_file
from ottla.cluster.state import ClusterFolder, ClusterState, NodeState, Phase, StateDamaged
from ottla.errors import Advice


class Condition(StrEnum):
    """The condition of a cluster as a whole."""

    ABSENT = "absent"
    STARTING = "starting"
    RUNNING = "running"
    DEGRADED = "degraded"
    """Some of its processes are running."""
    ORPHANED = "orphaned"
    """Its processes are running, but the program whose `with` block they belong to is dead."""
    STALE = "stale"
    """It has a state file, but none of its processes is running."""
    STOPPED = "stopped"
    """Stopped on purpose, with its data kept."""
    DAMAGED = "damaged"
    """The state file cannot be parsed."""


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """The status of one broker."""

    id: int
    roles: str
    life: Life
    pid: int | None
    address: str
    memory_bytes: int | None
    log: str


@dataclass(frozen=True, slots=True)
class RedisStatus:
    """The status of the Redis."""

    url: str
    life: Life
    pid: int | None
    memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus:
    """The status of one cluster; `note` says what is unusual about it and what to do."""

    name: str
    condition: Condition
    directory: str
    note: str = ""
    version: str | None = None
    cluster_id: str | None = None
    bootstrap: str | None = None
    secure_bootstrap: str | None = None
    ssl_bootstrap: str | None = None
    ca_file: str | None = None
    users: dict[str, str] = field(default_factory=dict)
    brokers: tuple[BrokerStatus, ...] = ()
    redis: RedisStatus | None = None

    @property
    def up(self) -> bool:
        """Whether clients can expect an answer."""
        return self.condition in (Condition.RUNNING, Condition.DEGRADED, Condition.ORPHANED)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        plain: dict[str, Any] = asdict(self, dict_factory=_plain)
        return plain


def read_status(folder: ClusterFolder) -> ClusterStatus:
    """Return the current status of the cluster in this folder."""
    directory = str(folder.path)
    try:
        state = folder.load()
    except StateDamaged as exc:
        return ClusterStatus(name=folder.name, condition=Condition.DAMAGED, directory=directory, note=str(exc))
    if state is None:
        return ClusterStatus(name=folder.name, condition=Condition.ABSENT, directory=directory)
    condition = condition_of(state, folder)
    return ClusterStatus(
        name=state.name,
        condition=condition,
        directory=directory,
        note=_note(condition, state),
        version=state.version,
        cluster_id=state.cluster_id,
        bootstrap=state.addresses("plaintext"),
        secure_bootstrap=state.addresses("sasl_ssl"),
        ssl_bootstrap=state.addresses("ssl"),
        ca_file=str(folder.certificates.authority) if state.secure else None,
        users=dict(state.users),
        brokers=tuple(_broker(node, folder) for node in state.nodes),
        redis=_redis(state, folder),
    )


def condition_of(state: ClusterState, folder: ClusterFolder) -> Condition:
    """Derive the condition of a cluster from its state file and the process table."""
    if state.phase is Phase.STARTING:
        return Condition.STARTING if folder.busy() else Condition.STALE
    lives = [life(node.process) for node in state.nodes]
    if state.redis is not None:
        lives.append(life(state.redis.process))
    if all(process_life is Life.DEAD for process_life in lives):
        return Condition.STOPPED if state.phase is Phase.KEPT else Condition.STALE
    if state.owner is not None and life(state.owner) is Life.DEAD:
        return Condition.ORPHANED
    return Condition.RUNNING if all(process_life is Life.RUNNING for process_life in lives) else Condition.DEGRADED


def _note(condition: Condition, state: ClusterState) -> str:
    if condition is Condition.STALE and state.phase is Phase.STARTING:
        return f"its start was interrupted: {Advice.CLUSTER_RESTART}"
    if condition is Condition.STALE:
        return f"none of its processes is running: {Advice.CLUSTER_RESTART}"
    if condition is Condition.ORPHANED and state.owner is not None:
        return f"the program that used it (pid {state.owner.pid}) is dead: {Advice.CLUSTER_REMOVE}"
    return f"stopped, data kept: {Advice.CLUSTER_RESUME}" if condition is Condition.STOPPED else ""


def _broker(node: NodeState, folder: ClusterFolder) -> BrokerStatus:
    process_life = life(node.process)
    return BrokerStatus(
        id=node.id,
        roles="broker+controller" if node.controller else "broker",
        life=process_life,
        pid=node.process.pid if node.process is not None and process_life is not Life.DEAD else None,
        address=str(node.address),
        memory_bytes=memory_bytes(node.process),
        log=str(folder.log(node.id)),
    )


def _redis(state: ClusterState, folder: ClusterFolder) -> RedisStatus | None:
    if state.redis is None:
        return None
    process = state.redis.process
    process_life = life(process)
    pid = process.pid if process is not None and process_life is not Life.DEAD else None
    return RedisStatus(state.redis.url(password_file(folder.redis)), process_life, pid, memory_bytes(process))


def _plain(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key: value.value if isinstance(value, (Life, Condition)) else value for key, value in items}
