"""The state of a local cluster on disk: its folder, its state file (written atomically), and the lock between commands.

Frozen values go in and out. A state file that cannot be parsed raises `StateDamaged`; its content is never guessed.
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
from ottla.default_address import ADDRESS_FILE
from ottla.errors import Advice, ConfigError, LocalClusterError
from ottla.files import replace_whole

logger = logging.getLogger(__name__)

_FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class StateDamaged(LocalClusterError):
    """The state file exists and cannot be parsed; only `down` removes it."""


class Phase(StrEnum):
    """How far the last command on the cluster got."""

    STARTING = "starting"
    RUNNING = "running"
    KEPT = "kept"
    """Stopped on purpose, with its data kept."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The listener ports of one node; None for a listener that it does not have."""

    plaintext: int | None
    controller: int | None = None
    sasl_ssl: int | None = None
    ssl: int | None = None

    def taken(self) -> tuple[int, ...]:
        """Return every port in use."""
        return tuple(p for p in (self.plaintext, self.controller, self.sasl_ssl, self.ssl) if p is not None)


@dataclass(frozen=True, slots=True)
class NodeState:
    """One broker; it is also a controller if it has a controller port."""

    id: int
    ports: Ports
    process: ProcessId | None = None

    @property
    def address(self) -> Address:
        """The address for clients: without credentials, if possible."""
        port = self.ports.plaintext if self.ports.plaintext is not None else self.ports.sasl_ssl
        assert port is not None
        return Address(HOST, port)

    @property
    def controller(self) -> bool:
        """Whether this node votes in the controller quorum."""
        return self.ports.controller is not None


@dataclass(frozen=True, slots=True)
class RedisState:
    """The Redis of the cluster."""

    port: int
    process: ProcessId | None = None

    def url(self, password_file: Path) -> str:
        """Return the address as stores of a fleet take it.

        It names the password file instead of the password, so that it can be shown and passed to other programs of this
        user.
        """
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
    racks: tuple[str, ...] = ()
    """The racks that brokers are in, in turns by id; empty for no racks."""
    first_port: int | None = None
    """The port on which broker 1 listens for clients, if it was chosen; the others follow by id."""
    users: Mapping[str, str] = field(default_factory=dict)
    internal_password: str = ""
    """The password with which the nodes of a secure cluster, and the commands that control it, log in."""
    redis: RedisState | None = None
    owner: ProcessId | None = None
    """The program whose `with` block this cluster belongs to; without one it lives until `down`."""
    guard: ProcessId | None = None
    """The process that takes the cluster down when its owner dies."""

    @property
    def secure(self) -> bool:
        """Whether it has TLS listeners."""
        return self.nodes[0].ports.sasl_ssl is not None

    @property
    def open(self) -> bool:
        """Whether clients may connect without credentials."""
        return self.nodes[0].ports.plaintext is not None

    def node(self, node_id: int) -> NodeState:
        """Return the node with this id. Raises `LocalClusterError` if there is none."""
        for node in self.nodes:
            if node.id == node_id:
                return node
        known = ", ".join(str(node.id) for node in self.nodes)
        raise LocalClusterError(f"cluster {self.name!r} has no broker {node_id}: its brokers are {known}")

    def with_node(self, updated: NodeState) -> ClusterState:
        """Return the cluster with one node replaced or added."""
        others = [node for node in self.nodes if node.id != updated.id]
        return replace(self, nodes=tuple(sorted((*others, updated), key=lambda node: node.id)))

    def processes(self) -> list[ProcessId]:
        """Return every process that was started and is not known to be gone."""
        redis = self.redis.process if self.redis is not None else None
        processes = (self.guard, redis, *(node.process for node in self.nodes))
        return [process for process in processes if process is not None]

    def ports(self) -> list[int]:
        """Return every port that its processes listen on."""
        redis = [self.redis.port] if self.redis is not None else []
        return [*redis, *(port for node in self.nodes for port in node.ports.taken())]

    def rack(self, node: NodeState) -> str | None:
        """Return the rack of a node, None without racks."""
        return self.racks[(node.id - 1) % len(self.racks)] if self.racks else None

    def stopped(self) -> ClusterState:
        """Return the cluster without processes and without an owner."""
        nodes = tuple(replace(node, process=None) for node in self.nodes)
        redis = replace(self.redis, process=None) if self.redis is not None else None
        return replace(self, phase=Phase.KEPT, nodes=nodes, redis=redis, owner=None, guard=None)

    @property
    def anywhere(self) -> str:
        """`host:port,...` of every broker, for clients with `internal_security`."""
        return ",".join(str(node.address) for node in self.nodes)

    def addresses(self, listener: str) -> str | None:
        """Return `host:port,...` of every broker's listener of one type, or None if it has none."""
        ports = [getattr(node.ports, listener) for node in self.nodes]
        return ",".join(f"{HOST}:{port}" for port in ports) if None not in ports else None


@dataclass(frozen=True, slots=True)
class ClusterFolder:
    """The folder of one named cluster, inside the folder of all clusters. Raises `ConfigError` for an invalid name."""

    base: Path
    name: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"invalid cluster name {self.name!r}: use up to 64 letters, digits, '.', '_' and '-'")

    @property
    def path(self) -> Path:
        """The folder with all files of the cluster."""
        return self.base / self.name

    @property
    def certificates(self) -> Certificates:
        """The PEM files of a secure cluster."""
        return Certificates(self.path / "certificates")

    @property
    def redis(self) -> Path:
        """The working directory of its Redis."""
        return self.path / "redis"

    def node(self, node_id: int) -> Path:
        """Return the folder of one broker's data and properties."""
        return self.path / f"broker-{node_id}"

    def properties(self, node_id: int) -> Path:
        """Return the properties file of one broker."""
        return self.node(node_id) / "server.properties"

    def data(self, node_id: int) -> Path:
        """Return the folder with the partitions of one broker."""
        return self.node(node_id) / "data"

    def log(self, node_id: int) -> Path:
        """Return the log file of one broker, over all its runs."""
        return self.path / "logs" / f"broker-{node_id}.log"

    @property
    def _state(self) -> Path:
        return self.path / "state.json"

    def load(self) -> ClusterState | None:
        """Return the state, or None if the cluster does not exist. Raises `StateDamaged` if it cannot be parsed."""
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
        """Replace the state file atomically: a reader sees the old or the new one, never a part."""
        self.create()
        temporary = self._state.with_suffix(f".{os.getpid()}")
        try:
            with private_file(temporary) as file:
                json.dump({"format": _FORMAT, **asdict(state)}, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._state)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        self._publish(state)

    def _publish(self, state: ClusterState) -> None:
        """While the cluster runs, its address is where clients look that are given none."""
        file, addresses = self.path / ADDRESS_FILE, state.addresses("plaintext")
        if state.phase is not Phase.RUNNING or addresses is None:
            file.unlink(missing_ok=True)
        elif not file.exists() or file.read_text(encoding="utf-8") != addresses:
            replace_whole(file, addresses.encode())

    def create(self) -> None:
        """Create the folder for this user alone: it contains passwords and the data of the brokers."""
        self.base.mkdir(parents=True, exist_ok=True)
        self.path.mkdir(mode=0o700, exist_ok=True)
        if self.path.stat().st_uid == os.getuid():
            self.path.chmod(0o700)

    def remove(self) -> None:
        """Delete the folder and all its data."""
        self._state.unlink(missing_ok=True)
        shutil.rmtree(self.path, ignore_errors=True)
        if self.path.exists():
            shutil.rmtree(self.path)

    def remove_data(self) -> None:
        """Delete everything except the logs, which show why a start failed."""
        self._state.unlink(missing_ok=True)
        for entry in self.path.iterdir() if self.path.exists() else ():
            if entry.name != "logs":
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    @contextmanager
    def locked(self, *, timeout: float) -> Iterator[None]:
        """Make every other command on this cluster wait.

        Raises `LocalClusterError` for file errors such as a full disk.
        """
        try:
            self.base.mkdir(parents=True, exist_ok=True)
            lock = self._lock()
            self._acquire(lock, timeout)
            try:
                yield
            finally:
                if not self.path.exists():
                    # While locked: a waiting command notices that the lock file is gone, and creates a new one.
                    Path(lock.lock_file).unlink(missing_ok=True)
                lock.release()
        except OSError as exc:
            raise LocalClusterError(f"cluster {self.name!r} in {self.base}: {exc}") from exc

    def busy(self) -> bool:
        """Return whether a command is working on this cluster right now."""
        if not self.base.exists():
            return False
        lock = self._lock()
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return True
        except OSError:  # A folder that cannot be written: no command works in it.
            return False
        lock.release()
        return False

    def _acquire(self, lock: FileLock, timeout: float) -> None:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            logger.info("another command is working on cluster %r: waiting for it", self.name)
            try:
                lock.acquire(timeout=timeout)
            except Timeout as exc:
                raise LocalClusterError(
                    f"another command has been working on cluster {self.name!r} for {timeout:.0f} s"
                    f" (it holds {lock.lock_file}): wait for it, or end it"
                ) from exc

    def _lock(self) -> FileLock:
        # Next to the folder, not in it: the folder is deleted while the lock is held.
        return FileLock(self.base / f"{self.name}.lock", is_singleton=False)

    def _damaged(self, reason: str) -> StateDamaged:
        return StateDamaged(
            f"the state file {self._state} of cluster {self.name!r} is damaged ({reason}): {Advice.CLUSTER_CLEAR}"
        )


def private_file(path: Path) -> TextIO:
    """Create an empty file, or replace one, that only this user can read, from the start."""
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8")


def folders(base: Path) -> list[ClusterFolder]:
    """Return every named cluster in `base` that has a state file, sorted by name."""
    names = sorted(path.parent.name for path in base.glob("*/state.json"))
    return [ClusterFolder(base, name) for name in names if _NAME.fullmatch(name)]


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
            "racks": tuple(row.get("racks", ())),
            "redis": RedisState(redis["port"], _process(redis["process"])) if redis is not None else None,
            "owner": _process(row["owner"]),
            "guard": _process(row["guard"]),
        }
    )


def _node(row: dict[str, Any]) -> NodeState:
    return NodeState(row["id"], Ports(**row["ports"]), _process(row["process"]))


def _process(row: dict[str, Any] | None) -> ProcessId | None:
    return ProcessId(int(row["pid"]), str(row["started"])) if row is not None else None
