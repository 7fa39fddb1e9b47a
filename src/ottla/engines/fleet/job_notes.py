"""Jobs and their results as notes in a store: plain JSON values, never code.

Values come in and bytes go out, and the other way round. Other parties may have written to the store, so nothing that
comes from it is unpickled or run. Invalid bytes raise `ValueError`, and an error is decoded only to one of the classes
of `ottla.errors`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from ottla import errors
from ottla.engines.contract import Job
from ottla.errors import Attempt, ErrorCode, ErrorRow, OttlaError, error_row
from ottla.model import OffsetRange

T = TypeVar("T")
Row = Mapping[str, Any]
"""A mapping of JSON values."""
JOB_KEY, RESULT_KEYS, SPARE_KEYS = "job", "result/", "spare/"
"""Keys of notes in the store: the job, the first result of each range, and duplicates of results."""


class Kind(Protocol[T]):
    """How one kind of job travels through a store: as plain values, from which every node builds the job itself.

    Secrets such as credentials never travel. Each node has its own.
    """

    @property
    def name(self) -> str:
        """The name by which nodes know this kind."""

    def job_row(self, job: Any, /) -> Row:
        """Encode what a node needs to know of a job."""

    def job(self, row: Row, /) -> Job[T]:
        """Build the job on this node. Raises if this node cannot or will not do it: other nodes may."""

    def result_row(self, result: T, /) -> Row:
        """Encode the result of a range."""

    def result(self, row: Row, /) -> T:
        """Decode the result of a range. Raises `ValueError`, `TypeError` or `KeyError` if the row is invalid."""


class JobNote(msgspec.Struct, frozen=True, kw_only=True):
    """A job in a store."""

    kind: str
    name: str
    """The unique name of this job."""
    row: dict[str, Any]

    def encoded(self) -> bytes:
        """Encode this note for `job_note`."""
        return msgspec.json.encode(self)


def job_note(text: bytes) -> JobNote:
    """Decode the note of a job. Raises `ValueError` if it is invalid."""
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
    """The result of a range: a row, or an error that another attempt would raise again."""

    unit: OffsetRange
    row: Row | None
    error: OttlaError | None = None

    def encoded(self) -> bytes:
        """Encode this note for `result_note`."""
        row = None if self.row is None else dict(self.row)
        error = None if self.error is None else _plain_error(self.error)
        return msgspec.json.encode(_Result(unit=self.unit, row=row, error=error))


def result_note(text: bytes) -> ResultNote:
    """Decode the note of a result. Raises `ValueError` if it is invalid."""
    result = msgspec.json.decode(text, type=_Result)
    if (result.row is None) == (result.error is None):
        raise ValueError("it must have either a result or an error")
    return ResultNote(result.unit, result.row, None if result.error is None else _error_of(result.error))


# Ottla errors


def _plain_error(error: OttlaError) -> _Error:
    # The constructors differ, so an error travels as its text and its attributes.
    fields = {name: _plain(value) for name, value in error.__dict__.items() if name != "__notes__"}
    notes = [str(note) for note in getattr(error, "__notes__", ())]
    return _Error(kind=_known(type(error)).__name__, text=_text(error), fields=fields, notes=notes)


def _known(kind: type[OttlaError]) -> type[OttlaError]:
    """Return the nearest class that every node has: one of `ottla.errors`."""
    public: type[OttlaError] = next(base for base in kind.__mro__ if getattr(errors, base.__name__, None) is base)
    return public


def _text(error: OttlaError) -> str:
    return str(error.args[0]) if error.args else str(error)


def _error_of(plain: _Error) -> OttlaError:
    """Decode an error. The class comes from `ottla.errors.__all__` and its constructor is not called."""
    kind = getattr(errors, plain.kind, None) if plain.kind in errors.__all__ else None
    if not (isinstance(kind, type) and issubclass(kind, OttlaError)):
        raise ValueError(f"{plain.kind!r} is not an Ottla error")
    error = kind.__new__(kind, plain.text)
    error.__dict__.update({name: _whole(value) for name, value in plain.fields.items()})
    for note in plain.notes:
        error.add_note(note)
    return error


def _plain(value: object) -> Any:
    """Encode a field of an error. A value without a plain form becomes text."""
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
            return [_plain(element) for element in value]
    return str(value)


def _whole(value: Any) -> Any:
    """Decode what `_plain` encoded."""
    match value:
        case {"code": int(code)}:
            return error_row(code).code
        case {"row": int(code)}:
            return error_row(code)
        case {"attempt": [str(address), str(reason), int() | float() as seconds, int(tries)]}:
            return Attempt(address, reason, seconds, tries)
        case list():
            return tuple(_whole(element) for element in value)
    return value
