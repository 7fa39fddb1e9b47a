"""`--format`: a template with fields in braces, filled in for whole columns at a time.

The template is checked once; an unknown field or form raises a ValueError that lists the known ones. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from string import Formatter

import pyarrow as pa
import pyarrow.compute as pc

from ottla.cli.consume import texts
from ottla.cli.consume.formats import timestamp_types
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
        """The columns that it needs; at least one, else records could not be counted."""
        return frozenset(piece.column for piece in self.pieces if isinstance(piece, _Field)) or frozenset({"offset"})

    def block(self, records: pa.RecordBatch) -> memoryview:
        """Return the text of all records."""
        pieces = [self._filled(piece, records) for piece in self.pieces]
        if any(isinstance(piece, pa.Array) for piece in pieces):
            return texts.contents(texts.join(*pieces))
        return memoryview(b"".join(piece.as_py() for piece in pieces) * records.num_rows)

    def _filled(self, piece: bytes | _Field, records: pa.RecordBatch) -> texts.Texts:
        if isinstance(piece, bytes):
            return texts.text(piece)
        written = piece.written(records.column(piece.column))
        return pc.fill_null(written, texts.text(self.null))


def parse(text: str, *, null: bytes = b"", readable: bool = False) -> Template:
    """Parse a template. Raises ValueError if a field or form does not exist.

    With `readable`, control characters in records are escaped, for a terminal. Those in the template stay.
    """
    pieces: list[bytes | _Field] = []
    for literal, name, form, conversion in _split(text):
        if literal:
            pieces.append(unescaped(literal))
        if name is not None:
            field = _field(name, form or "", conversion)
            pieces.append(_Field(field.column, _readable(field.written)) if readable and not form else field)
    return Template(pieces=tuple(pieces), null=null)


def _readable(written: _Written) -> _Written:
    def shown(column: pa.Array) -> texts.Texts:
        content = written(column)
        return texts.readable(content) if isinstance(content, pa.Array) else content

    return shown


def _split(text: str) -> list[tuple[str, str | None, str | None, str | None]]:
    try:
        return list(Formatter().parse(text))
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}; a field is written {{value}}, a brace itself {{{{ or }}}}") from error


def _field(name: str, form: str, conversion: str | None) -> _Field:
    is_header = name.startswith(_HEADER) and name != _HEADER
    if name not in _FORMS and not is_header:
        raise ValueError(f"no field {{{name}}}; use one of {', '.join(FIELDS)}")
    column, forms = ("headers", _BYTES) if is_header else _FORMS[name]
    if form not in forms or conversion:
        wrong = f"{{{name}{'!' + conversion if conversion else ''}{':' + form if form else ''}}}"
        others = ", ".join(f"{{{name}:{other}}}" if other else f"{{{name}}}" for other in forms)
        raise ValueError(f"no {wrong}; use {'' if len(forms) == 1 else 'one of '}{others}")
    written = forms[form]
    if is_header:
        return _Field(column, partial(_of_header, name.removeprefix(_HEADER), written))
    return _Field(column, written)


def _of_header(name: str, written: _Written, column: pa.Array) -> texts.Texts:
    return written(texts.header(column, name))
