"""`LocalCluster`: real Apache Kafka brokers on this machine, for development, tests, benchmarks and the demo.

A name and the wanted properties come in; addresses to connect to and methods to kill, stop, freeze and restart brokers
go out. All state is in the state file, so that any process can use any cluster of a folder.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from os import PathLike
from pathlib import Path
from types import TracebackType

import platformdirs

from ottla.cluster import lifecycle, process
from ottla.cluster.creation import ClusterRequest, JarSource, Start, bring_up, tools_for
from ottla.cluster.jars import Progress
from ottla.cluster.nodes import log_tail
from ottla.cluster.process import Life, ProcessId, life
from ottla.cluster.security import internal_security
from ottla.cluster.state import ClusterFolder, ClusterState, NodeState, Phase, folders
from ottla.cluster.status import ClusterStatus, read_status
from ottla.cluster.topics import TopicSpec, create_topics
from ottla.cluster.view import ClusterView
from ottla.default_address import clusters_folder
from ottla.errors import LocalClusterError
from ottla.net import Deadline


class Data(Enum):
    """What `down` does with the data."""

    REMOVE = "remove"
    KEEP = "keep"


def default_dir() -> Path:
    """Return the default folder of clusters."""
    return clusters_folder()


def default_cache_dir() -> Path:
    """Return the default folder of jars."""
    return Path(platformdirs.user_cache_dir("ottla")).resolve()


class LocalCluster(ClusterView):
    """A cluster of real brokers on 127.0.0.1, with a `name`.

    As a context manager it starts the cluster if it is not running, and removes what it started at the end of the
    block, data included. `up` and `down` do the same without a block; then the brokers outlive this process. With
    `secure`, clients need credentials, unless `plaintext` asks for an open listener as well. With two brokers, both are
    controllers and the majority is two, so the cluster does not survive a kill. With `racks`, brokers are in them in
    turns, by id. `settings` are properties of the brokers, `heap_bytes` is the Java heap of each, `version` that of
    Kafka. `redis` starts a Redis, too. State and data are below `dir`, downloaded jars in `cache_dir`; `maven_url` is
    where they come from, and `progress` is called with the bytes that are there and all bytes. With `port`, broker 1
    listens there for clients, broker 2 on the next one, and so on; without it, ports are free ones.

    Raises `ConfigError` for invalid arguments. Methods raise `LocalClusterError` if they fail.
    """

    def __init__(
        self,
        name: str = "default",
        *,
        brokers: int | None = None,
        topics: Iterable[str | TopicSpec] = (),
        redis: bool = False,
        secure: bool = False,
        plaintext: bool | None = None,
        dir: str | PathLike[str] | None = None,  # noqa: A002
        version: str | None = None,
        settings: Mapping[str, str] | None = None,
        racks: Iterable[str] = (),
        heap_bytes: int | None = None,
        port: int | None = None,
        timeout: float = 120.0,
        cache_dir: str | PathLike[str] | None = None,
        maven_url: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(ClusterFolder(Path(dir).resolve() if dir is not None else default_dir(), name))
        self.timeout = timeout
        self._topics = tuple(TopicSpec.parse(t) if isinstance(t, str) else t for t in topics)
        self._request = ClusterRequest(
            brokers=brokers,
            redis=redis,
            secure=secure,
            plaintext=plaintext,
            version=version,
            settings=dict(settings or {}),
            racks=tuple(racks),
            port=port,
            heap_bytes=heap_bytes,
            cache_dir=Path(cache_dir).resolve() if cache_dir is not None else default_cache_dir(),
        )
        self._source = JarSource(maven_url=maven_url, progress=progress)
        self._rng = random.Random()
        self._started = Start.NOTHING

    @classmethod
    def attach(cls, name: str = "default", dir: str | PathLike[str] | None = None) -> LocalCluster:  # noqa: A002
        """Return the running cluster `name` of the folder `dir`, whichever process started it.

        Raises `LocalClusterError` if it is not running.
        """
        cluster = cls(name, dir=dir)
        status = cluster.status()
        if not status.up:
            note = f": {status.note}" if status.note else ""
            raise LocalClusterError(f"cluster {name!r} is {status.condition} in {status.directory}{note}")
        return cluster

    @staticmethod
    def all(dir: str | PathLike[str] | None = None) -> list[ClusterStatus]:  # noqa: A002
        """Return the status of every cluster of the folder `dir`, running or not."""
        return [read_status(folder) for folder in folders(Path(dir).resolve() if dir is not None else default_dir())]

    def __enter__(self) -> LocalCluster:
        self._started = self._up(owner=ProcessId.own())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        started, self._started = self._started, Start.NOTHING
        if started in (Start.FRESH, Start.RESUMED):
            self.down(Data.REMOVE if started is Start.FRESH else Data.KEEP)

    def up(self) -> bool:
        """Start everything that is not running and create missing topics. Returns False if everything was running."""
        return self._up(owner=None) is not Start.NOTHING

    def down(self, data: Data = Data.REMOVE) -> bool:
        """End every process of the cluster; `data` says what becomes of its data. Returns False if it did not exist.

        To remove the data, all processes get SIGKILL. To keep it, the brokers are stopped one after the other.
        """
        with self._folder.locked(timeout=self.timeout):
            existed = self._folder.path.exists()
            state = self._folder.load() if data is Data.KEEP else None
            if state is None or state.phase is Phase.STARTING:
                lifecycle.end_cluster(self._folder)
                self._folder.remove()
            else:
                lifecycle.close_cluster(state, self._folder)
                self._folder.save(state.stopped())
        return existed

    def add(self) -> int:
        """Start one more broker and return its id. It is not a controller: those are fixed at the first start."""
        with self._folder.locked(timeout=self.timeout):
            state = self._state()
            node = lifecycle.added_node(state, self._rng)
            try:
                self._start(state.with_node(node), [node])
            except BaseException:
                self._folder.save(state)
                raise
            return node.id

    def kill(self, *ids: int) -> None:
        """Kill brokers with SIGKILL, as a power cut would."""
        self._each(ids, lifecycle.kill_node)

    def stop(self, *ids: int) -> None:
        """Stop brokers gracefully, one after the other: each first hands over its leaderships."""
        self._each(ids, lifecycle.stop_node)

    def restart(self, *ids: int) -> None:
        """Start brokers again, stopping those that run, and wait until the cluster has them back.

        While fewer than a majority of the controllers run, it does not wait; pass several ids to restart them together.
        """
        with self._folder.locked(timeout=self.timeout):
            state = self._state()
            for number in ids:
                state = lifecycle.stop_node(state, state.node(number), self._folder)
            self._start(state, [state.node(number) for number in ids])

    def freeze(self, *ids: int) -> None:
        """Send SIGSTOP: the broker keeps its connections and answers nothing, as if its machine paused."""
        self._signal(ids, signal.SIGSTOP, Life.FROZEN)

    def thaw(self, *ids: int) -> None:
        """Send SIGCONT: a frozen broker continues."""
        self._signal(ids, signal.SIGCONT, Life.RUNNING)

    def _up(self, *, owner: ProcessId | None) -> Start:
        with self._folder.locked(timeout=self.timeout):
            start = bring_up(
                self._folder,
                self._request,
                owner=owner,
                source=self._source,
                timeout=self.timeout,
                rng=self._rng,
            )
        try:
            state = self._state()
            security = internal_security(state, self._folder.certificates)
            create_topics(state.anywhere, self._topics, security=security, timeout=self.timeout)
        except BaseException:
            if start is Start.FRESH:
                self.down()
            raise
        return start

    def _start(self, state: ClusterState, nodes: list[NodeState]) -> None:
        tools = tools_for(state, self._source)
        deadline = Deadline.after(self.timeout)
        self._folder.save(lifecycle.start_nodes(state, self._folder, nodes, tools=tools, deadline=deadline))

    def _each(
        self, ids: tuple[int, ...], action: Callable[[ClusterState, NodeState, ClusterFolder], ClusterState]
    ) -> None:
        with self._folder.locked(timeout=self.timeout):
            state = self._state()
            for node in [state.node(number) for number in ids]:
                state = action(state, node, self._folder)

    def _signal(self, ids: tuple[int, ...], number: signal.Signals, expected: Life) -> None:
        """Send the signal to every running broker, then raise `LocalClusterError` if one of them is dead."""
        state = self._state()
        nodes = [state.node(broker) for broker in ids]
        for node in nodes:
            process.send(node.process, number)
        for node in nodes:
            process.wait_until(lambda n=node: life(n.process) in (expected, Life.DEAD), timeout=5.0)  # type: ignore[misc]
        dead = [node.id for node in nodes if life(node.process) is Life.DEAD]
        if dead:
            ends = "".join(f"\n{log_tail(self._folder.log(broker))}" for broker in dead)
            names = " and ".join(f"broker {broker}" for broker in dead)
            raise LocalClusterError(f"{names} of cluster {self.name!r} {'are' if dead[1:] else 'is'} not running{ends}")
