"""Bringing the processes of one cluster up and down; each step is in the state file before the next is taken.

In come a cluster's folder and state, with its lock held by the caller; out goes the new state. Whatever a failed
or interrupted step has started is stopped again here, so that callers have no process to clean up.
"""

from __future__ import annotations

import base64
import logging
import os
import random
import time
import uuid
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from ottla.cluster import process
from ottla.cluster.jars import Progress, ensure_jars
from ottla.cluster.java import find_java
from ottla.cluster.nodes import Java, format_storage, launch, log_tail, port_was_taken, write_properties
from ottla.cluster.ports import PortTaken, free_ports, is_free
from ottla.cluster.process import Life, life
from ottla.cluster.readiness import known_brokers
from ottla.cluster.redis import find_redis, start_redis, wait_for_redis
from ottla.cluster.security import internal_security
from ottla.cluster.state import ClusterFolder, ClusterState, NodeState, Ports, StateDamaged
from ottla.errors import LocalClusterError
from ottla.net import Deadline

logger = logging.getLogger(__name__)

_MAX_CONTROLLERS = 3
_PORT_ATTEMPTS = 3
_STOP_GRACE = 20.0
"""Seconds for a broker to hand its leaderships over and to close its logs."""
_LAST_GRACE = 2.0
_POLL = 0.1
_PROBE = 2.0


@dataclass(frozen=True, slots=True)
class Tools:
    """What starting processes needs from outside: Java with Kafka's jars, and a Redis if one is wanted."""

    java: Java
    redis: Path | None


def find_tools(
    version: str,
    cache_dir: Path,
    *,
    redis: bool,
    base_url: str | None = None,
    progress: Progress | None = None,
) -> Tools:
    """Look for everything before anything is started; jars that are missing are fetched."""
    environment = dict(os.environ)
    executable = find_java(environment)
    server = find_redis(environment) if redis else None
    class_path = ensure_jars(version, cache_dir, base_url=base_url, progress=progress)
    return Tools(Java(executable, class_path, environment), server)


def fresh_cluster_id() -> str:
    """As Kafka writes ids: 16 bytes in URL-safe base 64; a dash in front would look like an option."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text


def with_fresh_ports(state: ClusterState, chance: random.Random) -> ClusterState:
    """The same cluster on ports that are free now."""
    controllers = [node.controller for node in state.nodes]
    fresh = _ports(chance, controllers=controllers, is_open=state.open, secure=state.secure)
    nodes = tuple(replace(node, ports=ports) for node, ports in zip(state.nodes, fresh, strict=True))
    redis = replace(state.redis, port=free_ports(1, chance)[0]) if state.redis is not None else None
    return replace(state, nodes=nodes, redis=redis)


def fresh_nodes(count: int, *, is_open: bool, secure: bool, chance: random.Random) -> tuple[NodeState, ...]:
    """Nodes 1 to `count`, the first three of them also controllers."""
    controllers = [number <= _MAX_CONTROLLERS for number in range(1, count + 1)]
    return tuple(
        NodeState(number, ports)
        for number, ports in enumerate(_ports(chance, controllers=controllers, is_open=is_open, secure=secure), start=1)
    )


def added_node(state: ClusterState, chance: random.Random) -> NodeState:
    """One more broker. It never becomes a controller: the voters are fixed when the cluster is made."""
    (ports,) = _ports(chance, controllers=[False], is_open=state.open, secure=state.secure)
    return NodeState(max(node.id for node in state.nodes) + 1, ports)


def _ports(chance: random.Random, *, controllers: list[bool], is_open: bool, secure: bool) -> list[Ports]:
    """Ports for several nodes, all drawn at once so that no two nodes get the same one."""
    drawn = iter(free_ports(4 * len(controllers), chance))
    return [
        Ports(
            plaintext if is_open else None,
            voting if controller else None,
            sasl_ssl if secure else None,
            ssl if secure else None,
        )
        for controller, plaintext, voting, sasl_ssl, ssl in zip(controllers, drawn, drawn, drawn, drawn, strict=True)
    ]


def start_cluster(
    state: ClusterState, folder: ClusterFolder, *, tools: Tools, deadline: Deadline, chance: random.Random
) -> ClusterState:
    """Start every process of a cluster that has none; ports that turn out to be taken are chosen again."""
    for attempt in range(1, _PORT_ATTEMPTS + 1):
        if attempt > 1 or not all(is_free(port) for port in state.ports()):
            state = with_fresh_ports(state, chance)
        try:
            return start_nodes(state, folder, state.nodes, tools=tools, deadline=deadline)
        except PortTaken as exc:
            if attempt == _PORT_ATTEMPTS:
                raise
            logger.info("%s; trying other ports", exc)
    raise AssertionError("unreachable")


def start_nodes(
    state: ClusterState,
    folder: ClusterFolder,
    nodes: Collection[NodeState],
    *,
    tools: Tools,
    deadline: Deadline,
) -> ClusterState:
    """Start these nodes (and the Redis, if it should run and does not) and wait until the cluster has them."""
    before = {one.pid for one in state.processes() if life(one) is not Life.DEAD}
    try:
        state = _start_redis(state, folder, tools=tools, deadline=deadline)
        _prepare(state, folder, nodes, java=tools.java, deadline=deadline)
        for node in nodes:
            state = state.with_node(launch(state, node, folder, java=tools.java))
            folder.save(state)
        _wait_ready(state, folder, [node.id for node in nodes], deadline=deadline)
    except BaseException:
        # Also KeyboardInterrupt: nobody else knows of these processes. The scan finds one not noted yet.
        ours = [*state.processes(), *process.strays(folder.path)]
        process.end([one for one in ours if one.pid not in before], grace=0)
        raise
    return state


def end_cluster(folder: ClusterFolder) -> None:
    """End every process of a cluster at once, noted in its state file or not."""
    try:
        state = folder.load()
    except StateDamaged:
        state = None
    noted = state.processes() if state is not None else []
    found = {*noted, *process.strays(folder.path)}
    process.end([one for one in found if one.pid != os.getpid()], grace=0)


def close_cluster(state: ClusterState, folder: ClusterFolder) -> None:
    """End a cluster so that its data is in order: one controller after the other, each while the rest is a quorum.

    The last one of several finds none and would ask for minutes; it is killed soon and recovers its log when it starts.
    """
    brokers = [node.process for node in state.nodes if not node.controller]
    controllers = [node.process for node in state.nodes if node.controller]
    redis = state.redis.process if state.redis is not None else None
    process.end([redis, *brokers], grace=_STOP_GRACE)
    for controller in controllers[:-1]:
        process.end([controller], grace=_STOP_GRACE)
    process.end(controllers[-1:], grace=_STOP_GRACE if len(controllers) == 1 else _LAST_GRACE)
    end_cluster(folder)


def stop_node(state: ClusterState, node: NodeState, folder: ClusterFolder) -> ClusterState:
    """Stop a node as an operator would: it hands its leaderships over first, if somebody can take them."""
    process.end([node.process], grace=_STOP_GRACE)
    return _without_process(state, node, folder)


def kill_node(state: ClusterState, node: NodeState, folder: ClusterFolder) -> ClusterState:
    """End a node as a power cut would."""
    process.end([node.process], grace=0)
    return _without_process(state, node, folder)


def _without_process(state: ClusterState, node: NodeState, folder: ClusterFolder) -> ClusterState:
    state = state.with_node(replace(node, process=None))
    folder.save(state)
    return state


def _prepare(
    state: ClusterState, folder: ClusterFolder, nodes: Iterable[NodeState], *, java: Java, deadline: Deadline
) -> None:
    if state.secure:
        folder.certificates.create()
    for node in nodes:
        write_properties(state, node, folder)
    blank = [node for node in nodes if not (folder.data(node.id) / "meta.properties").exists()]
    with ThreadPoolExecutor(max(1, os.cpu_count() or 1), thread_name_prefix="ottla-format") as pool:
        jobs = [
            pool.submit(format_storage, state, node, folder, java=java, timeout=deadline.remaining()) for node in blank
        ]
        try:
            for job in jobs:
                job.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # after a failure or Ctrl-C, begin no further one
            raise


def _start_redis(state: ClusterState, folder: ClusterFolder, *, tools: Tools, deadline: Deadline) -> ClusterState:
    if state.redis is None or life(state.redis.process) is not Life.DEAD:
        return state
    assert tools.redis is not None
    port = state.redis.port
    running = start_redis(tools.redis, folder.redis, port=port, environment=tools.java.environment)
    state = replace(state, redis=replace(state.redis, process=running))
    folder.save(state)
    wait_for_redis(running, folder.redis, port=port, timeout=deadline.remaining())
    return state


def _wait_ready(state: ClusterState, folder: ClusterFolder, ids: Collection[int], *, deadline: Deadline) -> None:
    """Wait until every running broker answers and lists these brokers, which it does once they are unfenced."""
    if not _has_quorum(state):
        logger.info("cluster %r has no majority of controllers: not waiting for its brokers", state.name)
        return
    security = internal_security(state, folder.certificates)
    running = {node.id for node in state.nodes if life(node.process) is Life.RUNNING}
    # The new ones first: the others may still list a broker that was killed and is about to come back as a new one.
    for waiting_for in (set(ids), running - set(ids)):
        while waiting_for:
            for node in [state.node(number) for number in waiting_for]:
                if node.id in ids:
                    _require_alive(node, folder)
                if known_brokers(node.address, security=security, timeout=_PROBE) >= set(ids):
                    waiting_for.discard(node.id)
            if waiting_for and deadline.expired():
                raise _not_ready(state, folder, waiting_for, deadline)
            if waiting_for:
                time.sleep(_POLL)


def _has_quorum(state: ClusterState) -> bool:
    voters = [node for node in state.nodes if node.controller]
    return 2 * sum(life(node.process) is Life.RUNNING for node in voters) > len(voters)


def _require_alive(node: NodeState, folder: ClusterFolder) -> None:
    if life(node.process) is not Life.DEAD:
        return
    log = folder.log(node.id)
    if port_was_taken(log):
        raise PortTaken(f"a port of broker {node.id} ({', '.join(map(str, node.ports.taken()))}) is taken")
    raise LocalClusterError(f"broker {node.id} ended while starting; its log ({log}) ends with\n{log_tail(log)}")


def _not_ready(
    state: ClusterState, folder: ClusterFolder, waiting_for: Collection[int], deadline: Deadline
) -> LocalClusterError:
    names = ", ".join(f"{number} ({state.node(number).address})" for number in sorted(waiting_for))
    log = folder.log(min(waiting_for))
    return LocalClusterError(
        f"broker {names} of cluster {state.name!r} not ready after {deadline.elapsed():.0f} s;"
        f" the log {log} ends with\n{log_tail(log)}"
    )
