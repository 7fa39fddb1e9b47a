"""Jobs and their results as they lie in a store: plain values in JSON, of which nothing can be run.

Values come in and bytes go out, or the other way round. A store is read by others than those who wrote it: bytes that
are not what they should be raise `ValueError`, and an error of Ottla's own comes back as one of its classes or not at
all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from ottla import errors
from ottla.errors import Attempt, ErrorCode, ErrorRow, OttlaError, error_row
from ottla.model import OffsetRange

T = TypeVar("T")
Row = Mapping[str, Any]
"""Plain values that JSON has."""
JOB_KEY, RESULT_KEYS, SPARE_KEYS = "job", "result/", "spare/"
"""Notes in the store: the job, and what came of its ranges, once and a second time."""


class Kind(Protocol[T]):
    """How one kind of job travels: as plain values, from which every node makes the job by itself.

    What a node must not be told by others, credentials for one, each node has of its own.
    """

    @property
    def name(self) -> str:
        """By which nodes know it."""

    def job_row(self, job: Any, /) -> Row:
        """What a node needs to know of a job."""

    def job(self, row: Row, /) -> Callable[[OffsetRange], T]:
        """The job on this node. An error says why this node cannot, or will not, do it: others may."""

    def result_row(self, result: T, /) -> Row:
        """What came of a range."""

    def result(self, row: Row, /) -> T:
        """What `result_row` made plain."""


class JobNote(msgspec.Struct, frozen=True, kw_only=True):
    """A job in a store."""

    kind: str
    name: str
    """Of this very job: no other has it."""
    row: dict[str, Any]

    def encoded(self) -> bytes:
        """For `job_note`."""
        return msgspec.json.encode(self)


def job_note(text: bytes) -> JobNote:
    """The job that a store has."""
    return msgspec.json.decode(text, type=JobNote)


class _Error(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    text: str
    fields: dict[str, Any]
    notes: list[str]


class _Result(msgspec.Struct, frozen=True, kw_only=True):
    unit: OffsetRange
    row: dict[str, Any] | None = None
    error: _Error | None = None


class ResultNote(NamedTuple):
    """What came of a range: a row, or the error that another attempt would raise again."""

    unit: OffsetRange
    row: Row | None
    error: OttlaError | None = None

    def encoded(self) -> bytes:
        """For `result_note`."""
        row = None if self.row is None else dict(self.row)
        error = None if self.error is None else _plain_error(self.error)
        return msgspec.json.encode(_Result(unit=self.unit, row=row, error=error))


def result_note(text: bytes) -> ResultNote:
    """The result that a store has."""
    found = msgspec.json.decode(text, type=_Result)
    if (found.row is None) == (found.error is None):
        raise ValueError("it is neither a result nor an error")
    return ResultNote(found.unit, found.row, None if found.error is None else _error_of(found.error))


# Errors of Ottla's own


def _plain_error(error: OttlaError) -> _Error:
    fields = {name: _plain(value) for name, value in error.__dict__.items() if name != "__notes__"}
    notes = [str(note) for note in getattr(error, "__notes__", ())]
    return _Error(kind=_known(type(error)).__name__, text=_text(error), fields=fields, notes=notes)


def _known(kind: type[OttlaError]) -> type[OttlaError]:
    """The class that every node has: one of `ottla.errors`."""
    found: type[OttlaError] = next(one for one in kind.__mro__ if getattr(errors, one.__name__, None) is one)
    return found


def _text(error: OttlaError) -> str:
    return str(error.args[0]) if error.args else str(error)


def _error_of(plain: _Error) -> OttlaError:
    kind = getattr(errors, plain.kind, None) if plain.kind in errors.__all__ else None
    if not (isinstance(kind, type) and issubclass(kind, OttlaError)):
        raise ValueError(f"{plain.kind!r} is no error of Ottla's")
    error = kind.__new__(kind, plain.text)
    error.__dict__.update({name: _whole(value) for name, value in plain.fields.items()})
    for note in plain.notes:
        error.add_note(note)
    return error


def _plain(value: object) -> Any:
    """A field of an error. What has no plain form is told as text."""
    match value:
        case None | bool() | str() | float():
            return value
        case ErrorCode():
            return {"code": int(value)}
        case ErrorRow():
            return {"row": int(value.code)}
        case Attempt():
            return {"attempt": [value.address, value.reason, value.seconds, value.tries]}
        case int():
            return value
        case list() | tuple():
            return [_plain(one) for one in value]
    return str(value)


def _whole(value: Any) -> Any:
    match value:
        case {"code": int(code)}:
            return error_row(code).code
        case {"row": int(code)}:
            return error_row(code)
        case {"attempt": [str(address), str(reason), int() | float() as seconds, int(tries)]}:
            return Attempt(address, reason, seconds, tries)
        case list():
            return tuple(_whole(one) for one in value)
    return value
