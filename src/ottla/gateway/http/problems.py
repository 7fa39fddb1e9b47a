"""What went wrong with a request, as status, code and text, and which error of a producer means what.

Errors come in, `Problem` values go out. Texts name limits, topics and places in the body, never its content.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from http import HTTPStatus

import msgspec

from ottla.errors import (
    BrokerError,
    BufferFull,
    ConfigError,
    CorruptBatch,
    Fenced,
    InputError,
    KeptInSpool,
    NotDelivered,
    OttlaError,
    RecordTooLarge,
    SpoolFull,
)
from ottla.gateway.access.rules import ANONYMOUS
from ottla.text import printable

_LONGEST_TEXT = 300
_RETRY_SECONDS = 1
_SHARED_PART = 0.75


class Problem(Exception):
    """Ends a request with this answer. `code` is the one of the REST Proxy, by default the status."""

    def __init__(
        self,
        status: int,
        text: str,
        *,
        code: int = 0,
        limit: str = "",
        retry_after: int = 0,
        is_closing: bool = False,
        details: Mapping[str, object] | None = None,
    ) -> None:
        self.status = status
        self.text = printable(text, keep="\n")[:_LONGEST_TEXT]
        self.code = code or status
        self.limit = limit
        """The name of the limit that was hit, if any."""
        self.retry_after = retry_after
        self.is_closing = is_closing
        """Whether the connection must not be used for another request."""
        self.details = details or {}
        """More fields of the body, for programs."""
        self.is_counted = False
        """Whether its limit is in the counters."""
        super().__init__(self.text)

    def body(self) -> bytes:
        """Return the answer's body."""
        return msgspec.json.encode({**self.fields(), **self.details})

    def fields(self, code: str = "error_code") -> dict[str, object]:
        """Return code, text and limit for an answer in JSON, of a request or of one of its records."""
        fields: dict[str, object] = {code: self.code, "message": self.text}
        if self.limit:
            fields["limit"] = self.limit
        return fields

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers that go with it."""
        headers = [(b"content-type", b"application/json")]
        if self.retry_after:
            headers.append((b"retry-after", str(self.retry_after).encode()))
        if self.status == HTTPStatus.UNAUTHORIZED:
            headers.append((b"www-authenticate", b'Basic realm="ottla", charset="UTF-8", Bearer'))
        if self.is_closing:
            headers.append((b"connection", b"close"))
        return headers


def unknown_topic(topic: str) -> Problem:
    """Return the answer for a topic that does not exist."""
    return Problem(404, f"no topic {topic!r}: create it first", code=40401)


def unknown_partition(topic: str, partition: int) -> Problem:
    """Return the answer for a partition that does not exist."""
    return Problem(404, f"topic {topic!r} has no partition {partition}", code=40402)


def deleted(where: str, offset: int, *, begin: int, end: int) -> Problem:
    """Return the answer for records that retention has deleted before they were read."""
    text = f"{where}: offsets {offset} to {begin - 1} are deleted: they are older than what the topic keeps"
    return _gone(410, 41001, text, lost=(offset, begin), begin=begin, end=end)


def past_end(where: str, offset: int, *, begin: int, end: int) -> Problem:
    """Return the answer for an offset behind the end of its log."""
    text = f"{where}: the log ends at {end}, before offset {offset}: it was truncated, or this was never written"
    return _gone(416, 41601, text, lost=(end, offset), begin=begin, end=end)


def replaced(topic: str) -> Problem:
    """Return the answer for a place in a topic that does not exist any more, though its name does."""
    text = f"topic {topic!r} is not the one that this cursor belongs to: it was deleted and created again"
    return Problem(410, text, code=41002)


def _gone(status: int, code: int, text: str, *, lost: tuple[int, int], begin: int, end: int) -> Problem:
    details = {"lost": {"start": lost[0], "stop": lost[1]}, "begin_offset": begin, "end_offset": end}
    return Problem(status, text, code=code, details=details)


def unavailable(text: str, *, limit: str = "") -> Problem:
    """Return the answer for something that a later attempt may get. Nothing was written."""
    return Problem(503, text, code=50302, limit=limit, retry_after=_RETRY_SECONDS)


def check_share(owners: Collection[str], identity: str, most: int, limit: str) -> None:
    """Raise `Problem` 429 for a login that has most of what is nearly used up, so that others find a place.

    `owners` has the identity behind each place that is taken, `most` is how many there are.
    """
    if identity == ANONYMOUS or len(owners) < most * _SHARED_PART:
        return
    own = sum(each == identity for each in owners)
    if own * 2 > len(owners):
        text = f"{identity} has {own} of {most} {limit}: the last quarter is for others"
        raise Problem(429, text, limit=limit, retry_after=_RETRY_SECONDS)


def unknown_outcome(text: str) -> Problem:
    """Return the answer for records that may or may not be in the log."""
    return Problem(504, f"outcome unknown: {text}", code=50403)


def problem_of(error: Exception) -> Problem:
    """Return what an error of the producer means for the client."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, TimeoutError):
        return unknown_outcome("the brokers did not acknowledge in time; the records may be written later")
    if isinstance(error, NotDelivered):
        return _undelivered(error)
    if isinstance(error, RecordTooLarge):
        size, limit = error.size_bytes, error.limit_bytes
        return Problem(413, f"a record takes {size:,} bytes, at most {limit:,} are accepted", limit="record_bytes")
    if isinstance(error, BufferFull):
        return unavailable("the gateway's memory for records is full", limit="buffer_bytes")
    if isinstance(error, SpoolFull):
        if error.max_bytes is None:
            return unavailable("the disk of the gateway's spool is full", limit="spool_disk")
        return unavailable("the gateway's spool is full", limit="spool_bytes")
    if isinstance(error, BrokerError):
        return _of_broker(error)
    if isinstance(error, CorruptBatch):
        return Problem(500, f"the log is damaged: {_first_line(error)}", code=50004)
    if isinstance(error, InputError | ConfigError):
        return Problem(422, _first_line(error), code=42206)
    if isinstance(error, OttlaError):
        return unavailable(_first_line(error))
    raise error


def _undelivered(error: NotDelivered) -> Problem:
    if isinstance(error, KeptInSpool):
        return unknown_outcome("the gateway is stopping; the records are in its spool and will be written")
    if error.maybe_written:
        return unknown_outcome(f"{error.reason}; the records may or may not be in the log")
    if isinstance(error, Fenced):
        return unavailable("another gateway with this name has taken over")
    if isinstance(error.cause, OttlaError) and not isinstance(error.cause, NotDelivered):
        return problem_of(error.cause)
    return unavailable(_first_line(error))


def _of_broker(error: BrokerError) -> Problem:
    from ottla.codes import ErrorCode

    text = _first_line(error)
    match error.code:
        case ErrorCode.unknown_topic_or_partition | ErrorCode.unknown_topic_id:
            return Problem(404, text, code=40401)
        case ErrorCode.topic_authorization_failed | ErrorCode.cluster_authorization_failed:
            return Problem(403, text, code=40301)
        case ErrorCode.message_too_large | ErrorCode.record_list_too_large:
            return Problem(413, text, limit="max.message.bytes")
        case ErrorCode.invalid_topic_exception | ErrorCode.invalid_record | ErrorCode.invalid_timestamp:
            return Problem(422, text, code=42206)
    return unavailable(text)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
