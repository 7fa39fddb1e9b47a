"""`--format`: a text with named fields in braces, filled in for whole columns at a time.

The text comes in and is checked once; records come in and their texts go out behind one another. A field or form that
does not exist is a ValueError that names those that do. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from string import Formatter

import pyarrow as pa
import pyarrow.compute as pc

from ottla.cli.reading import texts
from ottla.cli.reading.showing import timestamp_types
from ottla.cli.values.escapes import unescaped

_Written = Callable[[pa.Array], texts.Texts]
_HEADER = "header."


def _as_it_is(column: pa.Array) -> pa.Array:
    return column.cast(pa.binary())


def _seconds(column: pa.Array) -> pa.Array:
    return texts.numbers(pc.divide(texts.milliseconds(column), 1000))


_BYTES: dict[str, _Written] = {
    "": _as_it_is,
    "hex": texts.hexadecimal,
    "base64": texts.base64,
    "json": texts.json_texts,
    "size": texts.sizes,
}
_FORMS: dict[str, tuple[str, dict[str, _Written]]] = {
    "topic": ("topic", {"": _as_it_is}),
    "partition": ("partition", {"": texts.numbers}),
    "offset": ("offset", {"": texts.numbers}),
    "timestamp": (
        "timestamp",
        {
            "": texts.iso_times,
            "iso": texts.iso_times,
            "ms": lambda column: texts.numbers(texts.milliseconds(column)),
            "s": _seconds,
        },
    ),
    "timestamp_type": ("timestampType", {"": timestamp_types}),
    "key": ("key", _BYTES),
    "value": ("value", _BYTES),
    "headers": ("headers", {"": texts.plain_headers, "json": texts.json_headers}),
    "key_size": ("key", {"": texts.sizes}),
    "value_size": ("value", {"": texts.sizes}),
}
FIELDS = (*_FORMS, f"{_HEADER}NAME")


@dataclass(frozen=True, slots=True)
class _Field:
    column: str
    written: _Written


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """Made by `parse`."""

    pieces: tuple[bytes | _Field, ...]
    null: bytes = b""

    @property
    def columns(self) -> frozenset[str]:
        """What it needs of records; one at least, or they could not be counted."""
        return frozenset(piece.column for piece in self.pieces if isinstance(piece, _Field)) or frozenset({"offset"})

    def block(self, records: pa.RecordBatch) -> memoryview:
        """The text of all records."""
        pieces = [self._filled(piece, records) for piece in self.pieces]
        if any(isinstance(piece, pa.Array) for piece in pieces):
            return texts.contents(texts.join(*pieces))
        return memoryview(b"".join(piece.as_py() for piece in pieces) * records.num_rows)

    def _filled(self, piece: bytes | _Field, records: pa.RecordBatch) -> texts.Texts:
        if isinstance(piece, bytes):
            return texts.text(piece)
        written = piece.written(records.column(piece.column))
        return pc.fill_null(written, texts.text(self.null))


def parse(given: str, *, null: bytes = b"", readable: bool = False) -> Template:
    """Understands the text; ValueError says what is wrong and what is accepted.

    With `readable`, control characters in records are written out: for a terminal. Those in the text itself stay.
    """
    pieces: list[bytes | _Field] = []
    for literal, name, form, conversion in _split(given):
        if literal:
            pieces.append(unescaped(literal))
        if name is not None:
            field = _field(name, form or "", conversion)
            pieces.append(_Field(field.column, _readable(field.written)) if readable and not form else field)
    return Template(pieces=tuple(pieces), null=null)


def _readable(written: _Written) -> _Written:
    def shown(column: pa.Array) -> texts.Texts:
        found = written(column)
        return texts.readable(found) if isinstance(found, pa.Array) else found

    return shown


def _split(given: str) -> list[tuple[str, str | None, str | None, str | None]]:
    try:
        return list(Formatter().parse(given))
    except ValueError as error:
        raise ValueError(f"{given!r}: {error}; a field is written {{value}}, a brace itself {{{{ or }}}}") from error


def _field(name: str, form: str, conversion: str | None) -> _Field:
    is_header = name.startswith(_HEADER) and name != _HEADER
    if name not in _FORMS and not is_header:
        raise ValueError(f"there is no field {{{name}}}; there are {', '.join(FIELDS)}")
    column, forms = ("headers", _BYTES) if is_header else _FORMS[name]
    if form not in forms or conversion:
        wrong = f"{{{name}{'!' + conversion if conversion else ''}{':' + form if form else ''}}}"
        others = ", ".join(f"{{{name}:{one}}}" if one else f"{{{name}}}" for one in forms)
        raise ValueError(f"there is no {wrong}; there {'is' if len(forms) == 1 else 'are'} {others}")
    written = forms[form]
    if is_header:
        return _Field(column, partial(_of_header, name.removeprefix(_HEADER), written))
    return _Field(column, written)


def _of_header(name: str, written: _Written, column: pa.Array) -> texts.Texts:
    return written(texts.header(column, name))
