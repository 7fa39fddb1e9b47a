"""Burrow's HTTP interface, version 3: paths in, JSON out, with Burrow's field names. Pure.

A snapshot answers as Burrow would after the same polls. States that Burrow does not have are shown as those it has:
LOST and AHEAD as STOP, what is unknown as OK with an incomplete window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

from ottla.operations.lag.values import OF_OTTLA, Commit, GroupLag, LagRow, Snapshot, State, Status

_STATES = {State.LOST: "STOP", State.AHEAD: "STOP", State.NONE: "OK", State.UNKNOWN: "OK"}
_STATUSES = {Status.UNKNOWN: "OK"}


class Answer(NamedTuple):
    """A status code and what the body has."""

    status: int
    content: Mapping[str, Any]


class Asked(NamedTuple):
    """Who is asked, and for what."""

    snapshot: Snapshot
    cluster: str
    """The name of the cluster in paths."""
    bootstrap: Sequence[str]
    path: str
    host: str
    """The name of this machine."""

    def answer(self, message: str, **content: Any) -> Answer:
        """Return a success."""
        return Answer(200, {"error": False, "message": message, **content, "request": self._request})

    def failure(self, status: int, message: str) -> Answer:
        """Return a failure."""
        return Answer(status, {"error": True, "message": message, "request": self._request})

    @property
    def _request(self) -> dict[str, str]:
        return {"url": self.path, "host": self.host}

    def group(self, name: str) -> GroupLag | None:
        """Return a group: of several with one name, Kafka's own comes first."""
        found = [group for group in self.snapshot.groups if group.name == name]
        return min(found, key=lambda group: group.type in OF_OTTLA, default=None)


def answer(asked: Asked) -> Answer:
    """Return the answer to a path that begins with /v3/kafka."""
    parts = [unquote(part) for part in asked.path.strip("/").split("/")]
    match parts:
        case ["v3", "kafka"]:
            return asked.answer("cluster list returned", clusters=[asked.cluster])
        case ["v3", "kafka", cluster, *rest] if cluster == asked.cluster:
            found = _of_cluster(asked, rest)
            return found if found is not None else asked.failure(404, "invalid request type")
        case ["v3", "kafka", *_]:
            return asked.failure(404, "cluster not found")
    return asked.failure(404, "invalid request type")


def _of_cluster(asked: Asked, rest: Sequence[str]) -> Answer | None:
    snapshot = asked.snapshot
    match list(rest):
        case []:
            return asked.answer("cluster module detail returned", module=_module(asked))
        case ["consumer"]:
            return asked.answer("consumer list returned", consumers=sorted({group.name for group in snapshot.groups}))
        case ["consumer", name]:
            return _known(asked, name, _detail)
        case ["consumer", name, "status"]:
            return _status(asked, name, with_all=False)
        case ["consumer", name, "lag"]:
            return _status(asked, name, with_all=True)
        case ["topic"]:
            return asked.answer("topic list returned", topics=sorted({tp.topic for tp in snapshot.logs}))
        case ["topic", name]:
            ends = [log.end for tp, log in sorted(snapshot.logs.items()) if tp.topic == name]
            if not ends:
                return asked.failure(404, "cluster or topic not found")
            return asked.answer("topic offsets returned", offsets=[-1 if end is None else end for end in ends])
        case ["topic", name, "consumers"]:
            readers = {row.group for row in snapshot.rows() if row.topic == name and row.committed is not None}
            return asked.answer("consumers of topic returned", consumers=sorted(readers))
    return None


def _known(asked: Asked, name: str, show: Callable[[Asked, GroupLag], Answer]) -> Answer:
    group = asked.group(name)
    return asked.failure(404, "cluster or consumer not found") if group is None else show(asked, group)


def _module(asked: Asked) -> dict[str, Any]:
    return {
        "class-name": "kafka",
        "servers": list(asked.bootstrap),
        "client-profile": {"name": "", "client-id": "", "kafka-version": "", "tls": None, "sasl": None},
        "topic-refresh": 0,
        "offset-refresh": 0,
    }


def _detail(asked: Asked, group: GroupLag) -> Answer:
    topics: dict[str, list[dict[str, Any]]] = {}
    for row in group.rows:
        topics.setdefault(row.topic, []).append(
            {
                "offsets": [_offset(commit) for commit in row.window],
                "owner": "" if row.owner is None else row.owner.host,
                "client_id": "" if row.owner is None else row.owner.client_id,
                "current-lag": row.lag_records or 0,
            }
        )
    return asked.answer("consumer detail returned", topics=topics)


def _status(asked: Asked, name: str, *, with_all: bool) -> Answer:
    group = asked.group(name)
    if group is None:
        status = _group_json(asked.cluster, name, "NOTFOUND", complete=1.0)
        # Burrow says that there is no error, with this status code.
        return Answer(404, asked.answer("consumer status returned", status=status).content)
    # Burrow knows only partitions with commits.
    rows = [row for row in group.rows if row.committed is not None or row.window]
    shown = [row for row in rows if with_all or _state(row) != "OK"]
    worst = max(rows, key=lambda row: row.lag_records or 0, default=None)
    status = _group_json(
        asked.cluster,
        name,
        _STATUSES.get(group.status, str(group.status)),
        complete=sum(row.complete >= 1 for row in rows) / len(rows) if rows else 0.0,
        partitions=[_row(row) for row in shown],
        count=len(rows),
        maxlag=None if worst is None else _row(worst),
        total=sum(row.lag_records or 0 for row in rows),
    )
    return asked.answer("consumer status returned", status=status)


def _group_json(
    cluster: str,
    name: str,
    status: str,
    *,
    complete: float,
    partitions: Sequence[Mapping[str, Any]] = (),
    count: int = 0,
    maxlag: Mapping[str, Any] | None = None,
    total: int = 0,
) -> dict[str, Any]:
    return {
        "cluster": cluster,
        "group": name,
        "status": status,
        "complete": round(complete, 4),
        "partitions": list(partitions),
        "partition_count": count,
        "maxlag": maxlag,
        "totallag": total,
    }


def _row(row: LagRow) -> dict[str, Any]:
    return {
        "topic": row.topic,
        "partition": row.partition,
        "owner": "" if row.owner is None else row.owner.host,
        "client_id": "" if row.owner is None else row.owner.client_id,
        "status": _state(row),
        "start": _offset(row.window[0]) if row.window else None,
        "end": _offset(row.window[-1]) if row.window else None,
        "current_lag": row.lag_records or 0,
        "complete": round(row.complete, 4),
    }


def _state(row: LagRow) -> str:
    return _STATES.get(row.state, str(row.state))


def _offset(commit: Commit) -> dict[str, Any]:
    milliseconds = round(commit.at * 1000)
    return {
        "offset": commit.offset,
        "timestamp": milliseconds,
        "observedAt": milliseconds,
        "lag": commit.lag,
    }
