"""Conditions on the records of an archive, as text: `key = 'user-1' and timestamp >= '2026-01-31T12:00Z'`.

A text comes in; a `Condition` goes out, which can be pickled and says which records pass, a whole column at a time.
Other text is an `InputError` that says where it is wrong and what is accepted. Pure. As in SQL, a comparison with null
is neither true nor false, and only true passes.

The name of a replay is made from the `repr` of its condition (`replay_plan.py`), so renaming a class or field here
would keep a replay with a condition from being resumed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ottla.errors import InputError

ACCEPTED = (
    "accepted are comparisons (= != < <= > >=, in (...), contains, matches, is null, is not null) of key, value,"
    " header.NAME, topic, partition, offset and timestamp with 'texts' and numbers, joined by and, or, not and"
    " parentheses"
)
_TEXT = r"'(?:[^']|'')*'"
_TOKEN = re.compile(
    rf"\s*(?:(?P<text>{_TEXT})|(?P<number>-?[0-9]+)|(?P<word>header\.{_TEXT}|[A-Za-z_][A-Za-z0-9_.-]*)"
    r"|(?P<sign><=|>=|!=|<>|==|[=<>(),]))"
)
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_SAME = {"==": "=", "<>": "!="}
_BYTES, _HEADER = ("key", "value"), "header."
_NUMBERS, _TIME, _TOPIC = ("partition", "offset"), "timestamp", "topic"
_DEEPEST = 50


class Condition(Protocol):
    """A condition on records."""

    def mask(self, records: pa.RecordBatch) -> pa.Array:
        """Return true, false or null for each record. The records have all columns of an archive."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A column compared with a value. Of several headers with one name, one match is enough."""

    field: str
    sign: str
    value: Any

    def mask(self, records: pa.RecordBatch) -> pa.Array:
        """See `Condition`."""
        if self.field.startswith(_HEADER):
            return _any_header(records, self.field.removeprefix(_HEADER), self._holds)
        return self._holds(records.column(self.field))

    def _holds(self, column: pa.Array) -> pa.Array:
        if self.sign == "contains":
            return pc.match_substring(column, pattern=self.value)
        if self.sign == "matches":
            return pc.match_substring_regex(column, pattern=self.value)
        return _COMPARE[self.sign](column, pa.scalar(self.value, column.type))


@dataclass(frozen=True, slots=True)
class IsNull:
    """A column is null; a header is missing or null."""

    field: str

    def mask(self, records: pa.RecordBatch) -> pa.Array:
        """See `Condition`."""
        if self.field.startswith(_HEADER):
            is_present = _any_header(records, self.field.removeprefix(_HEADER), pc.is_valid)
            return pc.invert(pc.fill_null(is_present, False))
        return pc.is_null(records.column(self.field))


@dataclass(frozen=True, slots=True)
class Not:
    """The negation of a condition."""

    one: Condition

    def mask(self, records: pa.RecordBatch) -> pa.Array:
        """See `Condition`."""
        return pc.invert(self.one.mask(records))


@dataclass(frozen=True, slots=True)
class AllOf:
    """All of the conditions hold."""

    parts: tuple[Condition, ...]

    def mask(self, records: pa.RecordBatch) -> pa.Array:
        """See `Condition`."""
        return reduce(pc.and_kleene, (part.mask(records) for part in self.parts))


@dataclass(frozen=True, slots=True)
class AnyOf:
    """At least one of the conditions holds."""

    parts: tuple[Condition, ...]

    def mask(self, records: pa.RecordBatch) -> pa.Array:
        """See `Condition`."""
        return reduce(pc.or_kleene, (part.mask(records) for part in self.parts))


def parse(text: str) -> Condition:
    """Parse a condition. Raises `InputError` if the text is not one."""
    return _Parser(text).whole()


def _any_header(records: pa.RecordBatch, name: str, holds: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Return whether a header with that name matches, for each record; null if it has no such header."""
    column = records.column("headers")
    pairs = column.flatten()
    rows = pc.list_parent_indices(column).to_numpy(zero_copy_only=False)
    named = pc.equal(pc.struct_field(pairs, "key"), name).to_numpy(zero_copy_only=False).astype(bool)
    values = pc.struct_field(pairs, "value")
    hits = pc.fill_null(holds(values), False).to_numpy(zero_copy_only=False).astype(bool) & named
    is_present, is_match = np.zeros(len(records), bool), np.zeros(len(records), bool)
    is_present[rows[named]] = True
    is_match[rows[hits]] = True
    return pa.array(is_match, mask=~is_present)


class _Token(NamedTuple):
    kind: str
    text: str
    place: int


class _Parser:
    """A recursive-descent parser: one method per rule of the grammar."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._split())
        self._next = 0
        self._depth = 0

    def whole(self) -> Condition:
        condition = self._any_of()
        if self._peek().kind != "end":
            raise self._wrong(self._peek(), "and, or, or the end was expected")
        return condition

    def _split(self) -> Iterator[_Token]:
        place = 0
        while self._text[place:].strip():
            match = _TOKEN.match(self._text, place)
            if match is None:
                raise InputError(f"{self._text!r} is not understood at {self._text[place:].strip()!r}; {ACCEPTED}")
            kind = match.lastgroup or ""
            yield _Token(kind, match[kind], match.start(kind))
            place = match.end()
        yield _Token("end", "", len(self._text))

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._peek()
        self._next += token.kind != "end"
        return token

    def _passes(self, *words: str) -> bool:
        """Take these words if they come next, and return whether they did."""
        coming = [token.text.lower() for token in self._tokens[self._next : self._next + len(words)]]
        if coming != list(words):
            return False
        self._next += len(words)
        return True

    def _wrong(self, token: _Token, why: str) -> InputError:
        where = f"at {self._text[token.place :]!r}" if token.kind != "end" else "at its end"
        return InputError(f"{self._text!r} is not understood {where}: {why}; {ACCEPTED}")

    def _any_of(self) -> Condition:
        parts = [self._all_of()]
        while self._passes("or"):
            parts.append(self._all_of())
        return parts[0] if len(parts) == 1 else AnyOf(tuple(parts))

    def _all_of(self) -> Condition:
        parts = [self._single()]
        while self._passes("and"):
            parts.append(self._single())
        return parts[0] if len(parts) == 1 else AllOf(tuple(parts))

    def _single(self) -> Condition:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._wrong(self._peek(), f"more than {_DEEPEST} levels")
        try:
            if self._passes("not"):
                return Not(self._single())
            if self._passes("("):
                inside = self._any_of()
                if not self._passes(")"):
                    raise self._wrong(self._peek(), ") was expected")
                return inside
            return self._comparison()
        finally:
            self._depth -= 1

    def _comparison(self) -> Condition:
        field = self._field()
        if self._passes("is", "not", "null"):
            return Not(IsNull(field))
        if self._passes("is", "null"):
            return IsNull(field)
        if self._passes("in", "("):
            return self._listed(field)
        token = self._take()
        sign = _SAME.get(token.text, token.text.lower())
        if sign in ("contains", "matches"):
            return Compared(field, sign, self._pattern(field, sign))
        if sign not in _COMPARE:
            raise self._wrong(token, f"a comparison was expected after {field}")
        return Compared(field, sign, self._literal(field))

    def _listed(self, field: str) -> Condition:
        parts = [Compared(field, "=", self._literal(field))]
        while self._passes(","):
            parts.append(Compared(field, "=", self._literal(field)))
        if not self._passes(")"):
            raise self._wrong(self._peek(), ", or ) was expected")
        return AnyOf(tuple(parts))

    def _field(self) -> str:
        token = self._take()
        name = token.text
        if token.kind == "word" and name.startswith(_HEADER) and len(name) > len(_HEADER):
            inner = name.removeprefix(_HEADER)
            return _HEADER + (_unquoted(inner) if inner.startswith("'") else inner)
        if token.kind != "word" or name not in (*_BYTES, *_NUMBERS, _TIME, _TOPIC):
            raise self._wrong(token, "a column was expected")
        return name

    def _literal(self, field: str) -> Any:
        token = self._take()
        if field in _NUMBERS:
            if token.kind != "number" or not -(1 << 31) <= int(token.text) < 1 << (31 if field == "partition" else 63):
                raise self._wrong(token, f"{field} is compared with a whole number")
            return int(token.text)
        if token.kind != "text":
            raise self._wrong(token, f"{field} is compared with a text in single quotes")
        text = _unquoted(token.text)
        if field == _TIME:
            return self._moment(token, text)
        return text if field == _TOPIC else text.encode()

    def _moment(self, token: _Token, text: str) -> datetime:
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            raise self._wrong(token, "that is no time such as '2026-01-31T12:00:00Z'") from None
        if time.tzinfo is None:
            raise self._wrong(token, "the time has no zone: add Z if it is UTC")
        return time.astimezone(UTC)

    def _pattern(self, field: str, sign: str) -> str | bytes:
        token = self._peek()
        if field in _NUMBERS or field == _TIME:
            raise self._wrong(token, f"{field} is no text")
        pattern: str | bytes = self._literal(field)
        if sign == "matches":
            try:
                pc.match_substring_regex(pa.array([b""], pa.binary()), pattern=pattern)
            except pa.ArrowInvalid as error:
                raise self._wrong(token, f"that is no regular expression ({error})") from error
        return pattern


def _unquoted(text: str) -> str:
    return text[1:-1].replace("''", "'")
