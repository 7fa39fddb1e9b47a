"""Fetch: returns batches from an offset and waits for enough of them; sessions (KIP-227) last until the broker goes
down."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ottla.errors import ErrorCode
from ottla.testing.fake.apis.metadata import broker
from ottla.testing.fake.apis.produce import current_leader
from ottla.testing.fake.context import Context
from ottla.testing.fake.log import PartitionLog, Refused
from ottla.testing.fake.messages import Tree
from ottla.testing.fake.state import ClusterState, FetchSession, Partition

KEY = 1
VERSIONS = range(4, 19)
_NO_SESSION = -1


@dataclass(slots=True)
class _Budget:
    """The bytes that one pass over the partitions may still take, and whether it found an error."""

    max_bytes: int
    size: int = 0
    failed: bool = False

    def take(self, log: PartitionLog, offset: int, limit: int) -> bytes:
        """Take batches from the log. The first batch of the whole response is taken whatever its size (KIP-74)."""
        allowed = min(limit, self.max_bytes - self.size)
        records = b"".join(log.read(offset, allowed))
        if self.size and len(records) > allowed:
            return b""
        self.size += len(records)
        return records


def handle(request: Any, state: ClusterState, context: Context) -> Tree:
    """Wait until `min_bytes` are available, a partition has an error, or `max_wait` is over."""
    session_id, epoch = getattr(request, "session_id", 0), getattr(request, "session_epoch", _NO_SESSION)
    session = None
    topics = [(item, item.partitions) for item in request.topics]
    if epoch > 0:
        session = state.fetch_sessions.get((context.broker, session_id))
        if session is None:
            return {"error_code": ErrorCode.fetch_session_id_not_found}
        if session.epoch != epoch:
            return {"error_code": ErrorCode.invalid_fetch_session_epoch}
        topics = _update_session(session, request)
        session.epoch += 1
    else:
        state.fetch_sessions.pop((context.broker, session_id), None)
        session_id = state.new_fetch_session(context.broker) if epoch == 0 else 0
        if session_id:
            session = state.fetch_sessions[context.broker, session_id]
            _update_session(session, request)
    deadline = context.now() + request.max_wait.total_seconds()
    while True:
        budget = _Budget(request.max_bytes)
        responses = [_topic(state, context, *item, budget, request.isolation_level) for item in topics]
        left = deadline - context.now()
        if budget.failed or budget.size >= request.min_bytes or left <= 0:
            changed = responses if session is None else _changed(session, responses)
            sent = changed if epoch > 0 else responses
            return {"responses": sent, "session_id": session_id, "node_endpoints": _endpoints(state, sent)}
        context.wait(left)


def _update_session(session: FetchSession, request: Any) -> list[tuple[Any, list[Any]]]:
    """Apply the request to the session. Returns all its topics and partitions."""
    for item in request.topics:
        for part in item.partitions:
            session.parts[_name(item), part.partition] = (item, part)
    for item in request.forgotten_topics_data:
        for index in item.partitions:
            session.parts.pop((_name(item), index), None)
            session.high_watermarks.pop((_name(item), index), None)
    topics: dict[Any, tuple[Any, list[Any]]] = {}
    for (name, _), (item, part) in session.parts.items():
        topics.setdefault(name, (item, []))[1].append(part)
    return list(topics.values())


def _name(item: Any) -> Any:
    return getattr(item, "topic_id", None) or item.topic


def _changed(session: FetchSession, responses: list[Tree]) -> list[Tree]:
    """Return only partitions that changed; those with records move to the end of the session."""
    sent: list[Tree] = []
    for response in responses:
        name = response["topic_id"] or response["topic"]
        parts = []
        for part in response["partitions"]:
            key = (name, part["partition_index"])
            is_new = session.high_watermarks.get(key) != part["high_watermark"]
            if is_new or part.get("records") or part["error_code"] is not ErrorCode.none or "diverging_epoch" in part:
                parts.append(part)
                session.high_watermarks[key] = part["high_watermark"]
            if part.get("records"):
                session.parts[key] = session.parts.pop(key)
        if parts:
            sent.append({**response, "partitions": parts})
    return sent


def _endpoints(state: ClusterState, responses: list[Tree]) -> list[Any]:
    parts = [part for response in responses for part in response["partitions"]]
    leaders = {part["current_leader"]["leader_id"] for part in parts if "current_leader" in part}
    return [broker(state, node) for node in sorted(leaders & state.live)]


def _topic(
    state: ClusterState, context: Context, item: Any, partitions: Iterable[Any], budget: _Budget, isolation: int
) -> Tree:
    parts = [_partition(state, context, item, part, budget, isolation) for part in partitions]
    return {
        "topic": getattr(item, "topic", None),
        "topic_id": getattr(item, "topic_id", None),
        "partitions": parts,
    }


def _partition(state: ClusterState, context: Context, item: Any, part: Any, budget: _Budget, isolation: int) -> Tree:
    topic = None
    try:
        topic = state.topic(item)
        context.check(topic.name, part.partition)
        partition = state.led_partition(topic, part.partition, broker=context.broker)
        partition.check_epoch(getattr(part, "current_leader_epoch", -1))
        diverging = _diverging(partition, part.fetch_offset, getattr(part, "last_fetched_epoch", -1))
        records = b"" if diverging else budget.take(partition.log, part.fetch_offset, part.partition_max_bytes)
        budget.failed |= diverging is not None  # Such a response must not wait.
    except Refused as refused:
        budget.failed = True
        response = {"partition_index": part.partition, "error_code": refused.code, "high_watermark": -1}
        return response | current_leader(state, topic, part.partition, refused.code)
    return {
        "partition_index": part.partition,
        "error_code": ErrorCode.none,
        "high_watermark": partition.log.end,
        "last_stable_offset": partition.log.end,
        "log_start_offset": partition.log.start,
        "aborted_transactions": () if isolation == 1 else None,
        "records": records,
    } | ({} if diverging is None else {"diverging_epoch": diverging})


def _diverging(partition: Partition, offset: int, epoch: int) -> Tree | None:
    """Return where the log diverges from a reader whose last record, before `offset`, was of `epoch` (KIP-595)."""
    if epoch < 0 or not partition.log.epochs:
        return None
    known_epoch, end = partition.epoch_end(epoch)
    if known_epoch < 0:
        raise Refused(ErrorCode.offset_out_of_range, f"epoch {epoch} is newer than the log")
    return {"epoch": known_epoch, "end_offset": end} if end < offset or known_epoch < epoch else None
