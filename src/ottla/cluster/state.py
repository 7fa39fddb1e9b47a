"""What a local cluster is, on disk: its folder, its state file (written atomically), the lock between commands.

In and out go frozen values; a state file that cannot be understood is reported as such and never guessed at.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import quote

from filelock import FileLock, Timeout

from ottla.cluster.certificates import Certificates
from ottla.cluster.ports import HOST
from ottla.cluster.process import ProcessId
from ottla.config import Address
from ottla.errors import ConfigError, LocalClusterError

logger = logging.getLogger(__name__)

_FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class StateDamaged(LocalClusterError):
    """The state file exists and cannot be understood; only `down` removes it."""


class Phase(StrEnum):
    """How far the last command on the cluster came."""

    STARTING = "starting"
    RUNNING = "running"
    KEPT = "kept"
    """Stopped on purpose, its data kept."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The listeners of one node; None where it has none."""

    plaintext: int | None
    controller: int | None = None
    sasl_ssl: int | None = None
    ssl: int | None = None

    def taken(self) -> tuple[int, ...]:
        """Every port in use."""
        return tuple(p for p in (self.plaintext, self.controller, self.sasl_ssl, self.ssl) if p is not None)


@dataclass(frozen=True, slots=True)
class NodeState:
    """One broker, which is also a controller if it has a port for that."""

    id: int
    ports: Ports
    process: ProcessId | None = None

    @property
    def address(self) -> Address:
        """Where clients reach it: without credentials, if that is possible."""
        port = self.ports.plaintext if self.ports.plaintext is not None else self.ports.sasl_ssl
        assert port is not None
        return Address(HOST, port)

    @property
    def controller(self) -> bool:
        """Whether this node votes in the controllers' quorum."""
        return self.ports.controller is not None


@dataclass(frozen=True, slots=True)
class RedisState:
    """The Redis beside the brokers."""

    port: int
    process: ProcessId | None = None

    def url(self, password_file: Path) -> str:
        """As stores of a fleet take it: with the file of the password and not with the password, so that it can be
        shown and given to other programs of this account."""
        address = f"redis://{HOST}:{self.port}/0"
        return f"{address}?password_file={quote(str(password_file))}" if password_file.exists() else address


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """Everything needed to find, restart and stop a cluster from another process."""

    name: str
    cluster_id: str
    version: str
    phase: Phase
    nodes: tuple[NodeState, ...]
    cache_dir: str
    heap_bytes: int
    settings: Mapping[str, str] = field(default_factory=dict)
    users: Mapping[str, str] = field(default_factory=dict)
    internal_password: str = ""
    """With which the nodes of a secure cluster, and the commands that control it, log in."""
    redis: RedisState | None = None
    owner: ProcessId | None = None
    """The program whose `with` block this cluster lives in; without one it lives until `down`."""
    guard: ProcessId | None = None
    """The process that takes the cluster down when its owner is gone."""

    @property
    def secure(self) -> bool:
        """Whether it has the TLS listeners."""
        return self.nodes[0].ports.sasl_ssl is not None

    @property
    def open(self) -> bool:
        """Whether clients come in without credentials."""
        return self.nodes[0].ports.plaintext is not None

    def node(self, node_id: int) -> NodeState:
        """The node with this id."""
        for node in self.nodes:
            if node.id == node_id:
                return node
        known = ", ".join(str(node.id) for node in self.nodes)
        raise LocalClusterError(f"cluster {self.name!r} has no broker {node_id}: its brokers are {known}")

    def with_node(self, changed: NodeState) -> ClusterState:
        """The same cluster with one node changed, or added."""
        others = [node for node in self.nodes if node.id != changed.id]
        return replace(self, nodes=tuple(sorted((*others, changed), key=lambda node: node.id)))

    def processes(self) -> list[ProcessId]:
        """Every process that was started and not yet known to be gone."""
        redis = self.redis.process if self.redis is not None else None
        every = (self.guard, redis, *(node.process for node in self.nodes))
        return [process for process in every if process is not None]

    def ports(self) -> list[int]:
        """Every port that its processes listen on."""
        redis = [self.redis.port] if self.redis is not None else []
        return [*redis, *(port for node in self.nodes for port in node.ports.taken())]

    def stopped(self) -> ClusterState:
        """The same cluster without processes and without a program that it belongs to."""
        nodes = tuple(replace(node, process=None) for node in self.nodes)
        redis = replace(self.redis, process=None) if self.redis is not None else None
        return replace(self, phase=Phase.KEPT, nodes=nodes, redis=redis, owner=None, guard=None)

    @property
    def anywhere(self) -> str:
        """`host:port,...` of every broker, for those who know its internal password."""
        return ",".join(str(node.address) for node in self.nodes)

    def addresses(self, listener: str) -> str | None:
        """`host:port,...` of one kind of listener of every broker, or None where it has none."""
        ports = [getattr(node.ports, listener) for node in self.nodes]
        return ",".join(f"{HOST}:{port}" for port in ports) if None not in ports else None


@dataclass(frozen=True, slots=True)
class ClusterFolder:
    """The folder of one named cluster, inside the folder of all of them."""

    base: Path
    name: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"cluster name {self.name!r}: up to 64 letters, digits, '.', '_' and '-' are accepted")

    @property
    def path(self) -> Path:
        """Where everything of the cluster is."""
        return self.base / self.name

    @property
    def certificates(self) -> Certificates:
        """The PEM files of a secure cluster."""
        return Certificates(self.path / "certificates")

    @property
    def redis(self) -> Path:
        """The working folder of its Redis."""
        return self.path / "redis"

    def node(self, node_id: int) -> Path:
        """The folder of one broker's data and properties."""
        return self.path / f"broker-{node_id}"

    def properties(self, node_id: int) -> Path:
        """The properties file that one broker runs with."""
        return self.node(node_id) / "server.properties"

    def data(self, node_id: int) -> Path:
        """The folder in which one broker keeps its partitions."""
        return self.node(node_id) / "data"

    def log(self, node_id: int) -> Path:
        """What one broker printed, over all its runs."""
        return self.path / "logs" / f"broker-{node_id}.log"

    @property
    def _state(self) -> Path:
        return self.path / "state.json"

    def load(self) -> ClusterState | None:
        """The state, or None when there is no such cluster."""
        try:
            text = self._state.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as exc:
            raise self._damaged(str(exc)) from exc
        try:
            return _from_json(json.loads(text))
        except (ValueError, TypeError, KeyError, AttributeError) as exc:
            raise self._damaged(f"{type(exc).__name__}: {exc}") from exc

    def save(self, state: ClusterState) -> None:
        """Replace the state file as a whole: a reader sees the old or the new one, never a part."""
        self.create()
        draft = self._state.with_suffix(f".{os.getpid()}")
        try:
            with private_file(draft) as file:
                json.dump({"format": _FORMAT, **asdict(state)}, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self._state)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise

    def create(self) -> None:
        """Make the folder, for this user alone: passwords and the data of brokers are in it."""
        self.base.mkdir(parents=True, exist_ok=True)
        self.path.mkdir(mode=0o700, exist_ok=True)
        if self.path.stat().st_uid == os.getuid():
            self.path.chmod(0o700)

    def remove(self) -> None:
        """Delete the folder and all data in it."""
        self._state.unlink(missing_ok=True)
        shutil.rmtree(self.path, ignore_errors=True)
        if self.path.exists():
            shutil.rmtree(self.path)

    def remove_data(self) -> None:
        """Delete all but the logs, which tell why a start failed."""
        self._state.unlink(missing_ok=True)
        for entry in self.path.iterdir() if self.path.exists() else ():
            if entry.name != "logs":
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    @contextmanager
    def locked(self, *, timeout: float) -> Iterator[None]:
        """Keep every other command on this cluster waiting; its files' trouble (a full disk) is told in our words."""
        try:
            self.base.mkdir(parents=True, exist_ok=True)
            lock = self._lock()
            self._acquire(lock, timeout)
            try:
                yield
            finally:
                if not self.path.exists():
                    # While it is held: a command that waits notices that the file has gone, and makes a new one.
                    Path(lock.lock_file).unlink(missing_ok=True)
                lock.release()
        except OSError as exc:
            raise LocalClusterError(f"cluster {self.name!r} in {self.base}: {exc}") from exc

    def busy(self) -> bool:
        """Whether a command is working on this cluster right now."""
        if not self.base.exists():
            return False
        lock = self._lock()
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return True
        except OSError:  # a folder that cannot be written: nobody works in it
            return False
        lock.release()
        return False

    def _acquire(self, lock: FileLock, timeout: float) -> None:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            logger.info("another command works on cluster %r: waiting for it", self.name)
            try:
                lock.acquire(timeout=timeout)
            except Timeout as exc:
                raise LocalClusterError(
                    f"another command has been working on cluster {self.name!r} for {timeout:.0f} s"
                    f" (it holds {lock.lock_file})"
                ) from exc

    def _lock(self) -> FileLock:
        # Beside the folder, not in it: the folder is deleted while the lock is held.
        return FileLock(self.base / f"{self.name}.lock", is_singleton=False)

    def _damaged(self, reason: str) -> StateDamaged:
        return StateDamaged(
            f"the state file {self._state} of cluster {self.name!r} is damaged ({reason}):"
            f" 'ottla cluster down --name {self.name}' removes what is left of it"
        )


def private_file(path: Path) -> TextIO:
    """A new file, or one that is emptied, which only this user can read: it is so before anything is in it."""
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8")


def folders(base: Path) -> list[ClusterFolder]:
    """Every named cluster below `base` that has a state file, by name."""
    found = sorted(path.parent.name for path in base.glob("*/state.json"))
    return [ClusterFolder(base, name) for name in found if _NAME.fullmatch(name)]


def _from_json(row: dict[str, Any]) -> ClusterState:
    if row.pop("format") != _FORMAT:
        raise ValueError("it was written by another version of Ottla")
    if not row["nodes"]:
        raise ValueError("it has no broker")
    redis = row.pop("redis")
    return ClusterState(
        **{
            **row,
            "phase": Phase(row["phase"]),
            "nodes": tuple(_node(node) for node in row["nodes"]),
            "redis": RedisState(redis["port"], _process(redis["process"])) if redis is not None else None,
            "owner": _process(row["owner"]),
            "guard": _process(row["guard"]),
        }
    )


def _node(row: dict[str, Any]) -> NodeState:
    return NodeState(row["id"], Ports(**row["ports"]), _process(row["process"]))


def _process(row: dict[str, Any] | None) -> ProcessId | None:
    return ProcessId(int(row["pid"]), str(row["started"])) if row is not None else None
