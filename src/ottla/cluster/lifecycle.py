"""Starts and stops the processes of one cluster, recording each step in the state file before the next.

A cluster's folder and state, with its lock held by the caller, come in; the new state goes out. If a step fails or is
interrupted, everything it started is stopped again, so callers have no processes to clean up.
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
"""Seconds for a broker to hand over its leaderships and close its logs."""
_LAST_GRACE = 2.0
"""Seconds for the last of several controllers, which finds no quorum."""
_POLL = 0.1
"""Seconds between two rounds of asking brokers whether they are ready."""
_PROBE = 2.0
"""Time limit for asking one broker."""


@dataclass(frozen=True, slots=True)
class Tools:
    """What starting processes needs: Java with Kafka's jars, and a Redis if requested."""

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
    """Find everything before anything is started; download missing jars.

    Raises `LocalClusterError` if Java, a requested Redis or a jar is unavailable.
    """
    environment = dict(os.environ)
    executable = find_java(environment)
    server = find_redis(environment) if redis else None
    class_path = ensure_jars(version, cache_dir, base_url=base_url, progress=progress)
    return Tools(Java(executable, class_path, environment), server)


def fresh_cluster_id() -> str:
    """Return a new id in Kafka's form: 16 bytes in URL-safe base64."""
    # A leading dash would look like a command-line option.
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text


def with_fresh_ports(state: ClusterState, rng: random.Random) -> ClusterState:
    """Return the same cluster on ports that are free now."""
    controllers = [node.controller for node in state.nodes]
    fresh = _ports(rng, controllers=controllers, is_open=state.open, secure=state.secure, first_port=state.first_port)
    nodes = tuple(replace(node, ports=ports) for node, ports in zip(state.nodes, fresh, strict=True))
    redis = replace(state.redis, port=free_ports(1, rng)[0]) if state.redis is not None else None
    return replace(state, nodes=nodes, redis=redis)


def fresh_nodes(
    count: int, *, is_open: bool, secure: bool, first_port: int | None, rng: random.Random
) -> tuple[NodeState, ...]:
    """Return nodes 1 to `count`; the first three are also controllers."""
    controllers = [number <= _MAX_CONTROLLERS for number in range(1, count + 1)]
    ports = _ports(rng, controllers=controllers, is_open=is_open, secure=secure, first_port=first_port)
    return tuple(NodeState(number, ports_of_node) for number, ports_of_node in enumerate(ports, start=1))


def added_node(state: ClusterState, rng: random.Random) -> NodeState:
    """Return one more broker. It is never a controller: the voters are fixed when the cluster is created."""
    number = max(node.id for node in state.nodes) + 1
    first_port = None if state.first_port is None else state.first_port + number - 1
    (ports,) = _ports(rng, controllers=[False], is_open=state.open, secure=state.secure, first_port=first_port)
    if first_port is not None:
        _require_free([first_port])
    return NodeState(number, ports)


def _ports(
    rng: random.Random, *, controllers: list[bool], is_open: bool, secure: bool, first_port: int | None
) -> list[Ports]:
    """Return ports for several nodes, drawn all at once so that no two nodes get the same one.

    With `first_port`, the listener for clients of the first node has it, that of the second the next one, and so on.
    """
    count = len(controllers)
    chosen = [] if first_port is None else list(range(first_port, first_port + count))
    drawn = iter([port for port in free_ports(5 * count, rng) if port not in chosen])
    for_clients = iter(chosen) if chosen else drawn
    return [
        Ports(
            next(for_clients) if is_open else None,
            next(drawn) if controller else None,
            next(drawn if is_open else for_clients) if secure else None,
            next(drawn) if secure else None,
        )
        for controller in controllers
    ]


def _require_free(ports: Iterable[int]) -> None:
    taken = [str(port) for port in ports if not is_free(port)]
    if taken:
        raise LocalClusterError(f"another program listens on port {', '.join(taken)}: end it, or choose another port")


def start_cluster(
    state: ClusterState, folder: ClusterFolder, *, tools: Tools, deadline: Deadline, rng: random.Random
) -> ClusterState:
    """Start every process of a stopped cluster; choose other ports if some turn out to be taken.

    Raises `LocalClusterError` if it does not start by the deadline, or if a chosen port is taken.
    """
    chosen = [] if state.first_port is None else [node.address.port for node in state.nodes]
    for attempt in range(1, _PORT_ATTEMPTS + 1):
        _require_free(chosen)
        if attempt > 1 or not all(is_free(port) for port in state.ports()):
            state = with_fresh_ports(state, rng)
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
    """Start these nodes (and a requested Redis that is not running) and wait until the cluster has them.

    Raises `LocalClusterError` if they are not ready by the deadline.
    """
    running_before = {process_id.pid for process_id in state.processes() if life(process_id) is not Life.DEAD}
    try:
        state = _start_redis(state, folder, tools=tools, deadline=deadline)
        _prepare(state, folder, nodes, java=tools.java, deadline=deadline)
        for node in nodes:
            state = state.with_node(launch(state, node, folder, java=tools.java))
            folder.save(state)
        _wait_ready(state, folder, [node.id for node in nodes], deadline=deadline)
    except BaseException:
        # Also on KeyboardInterrupt: nothing else knows these processes. The scan finds one that is not recorded yet.
        ours = [*state.processes(), *process.strays(folder.path)]
        process.end([process_id for process_id in ours if process_id.pid not in running_before], grace=0)
        raise
    return state


def end_cluster(folder: ClusterFolder) -> None:
    """Kill every process of a cluster, whether recorded in its state file or not."""
    try:
        state = folder.load()
    except StateDamaged:
        state = None
    noted = state.processes() if state is not None else []
    processes = {*noted, *process.strays(folder.path)}
    process.end([process_id for process_id in processes if process_id.pid != os.getpid()], grace=0)


def close_cluster(state: ClusterState, folder: ClusterFolder) -> None:
    """Stop a cluster and keep its data consistent: one controller after the other, while the rest still has a quorum.

    The last of several controllers finds no quorum and would wait for minutes. It is killed early and recovers its log
    at the next start.
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
    """Stop a node as an operator would: it first hands over its leaderships, if another broker can take them."""
    process.end([node.process], grace=_STOP_GRACE)
    return _without_process(state, node, folder)


def kill_node(state: ClusterState, node: NodeState, folder: ClusterFolder) -> ClusterState:
    """Kill a node, as a power cut would."""
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
            pool.shutdown(wait=False, cancel_futures=True)  # After a failure or Ctrl-C, start no more of them.
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
    """Wait until every running broker answers and lists these brokers, which it does once they are unfenced.

    Raises `LocalClusterError` at the deadline, or if one of them ends.
    """
    if not _has_quorum(state):
        logger.info("cluster %r has no controller majority: not waiting for its brokers", state.name)
        return
    security = internal_security(state, folder.certificates)
    running = {node.id for node in state.nodes if life(node.process) is Life.RUNNING}
    # The new ones first: the others may still list the previous run of a broker that was killed and restarted.
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
    raise LocalClusterError(f"broker {node.id} ended during startup; its log ({log}) ends with\n{log_tail(log)}")


def _not_ready(
    state: ClusterState, folder: ClusterFolder, waiting_for: Collection[int], deadline: Deadline
) -> LocalClusterError:
    names = ", ".join(f"{number} ({state.node(number).address})" for number in sorted(waiting_for))
    log = folder.log(min(waiting_for))
    return LocalClusterError(
        f"broker {names} of cluster {state.name!r} not ready after {deadline.elapsed():.0f} s;"
        f" the log {log} ends with\n{log_tail(log)}"
    )
