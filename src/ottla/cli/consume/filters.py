"""Filters of `ottla consume` on keys, values and headers, each applied to a whole column at once. Pure."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ottla.cli.consume.texts import list_ends


@dataclass(frozen=True, slots=True)
class HasHeader:
    """A header with this name, and with this value if one is given."""

    name: str
    value: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """All filters that are given must match. A null key or value matches nothing."""

    key: bytes | None = None
    key_pattern: bytes | None = None
    """Matches anywhere in the key; made by `pattern`."""
    value_pattern: bytes | None = None
    contains: tuple[bytes, ...] = ()
    headers: tuple[HasHeader, ...] = ()

    @property
    def columns(self) -> frozenset[str]:
        """The columns that it needs."""
        needed = {
            "key": self.key is not None or self.key_pattern is not None,
            "value": self.value_pattern is not None or bool(self.contains),
            "headers": bool(self.headers),
        }
        return frozenset(column for column, is_needed in needed.items() if is_needed)

    def apply(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records that match."""
        masks = self._masks(records)
        if not masks:
            return records
        together = masks[0]
        for mask in masks[1:]:
            together = pc.and_(together, mask)
        return records.filter(together)

    def _masks(self, records: pa.RecordBatch) -> list[pa.Array]:
        masks = []
        if self.key is not None:
            masks.append(pc.equal(records.column("key"), pa.scalar(self.key, pa.binary())))
        if self.key_pattern is not None:
            masks.append(pc.match_substring_regex(records.column("key"), pattern=self.key_pattern))
        if self.value_pattern is not None:
            masks.append(pc.match_substring_regex(records.column("value"), pattern=self.value_pattern))
        masks += [pc.match_substring(records.column("value"), pattern=text) for text in self.contains]
        masks += [_with_header(records.column("headers"), header) for header in self.headers]
        return masks


def pattern(text: str) -> bytes:
    """Return an RE2 expression for bytes. Raises ValueError if the text is not one."""
    expression = os.fsencode(text)
    try:
        pc.match_substring_regex(pa.array([b""], pa.binary()), pattern=expression)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from error
    return expression


def _with_header(column: pa.Array, header: HasHeader) -> pa.Array:
    pairs = column.flatten()
    hits = pc.equal(pc.struct_field(pairs, "key"), header.name)
    if header.value is not None:
        hits = pc.and_(hits, pc.equal(pc.struct_field(pairs, "value"), pa.scalar(header.value, pa.binary())))
    before = np.zeros(len(pairs) + 1, np.int64)
    np.cumsum(pc.fill_null(hits, False).to_numpy(zero_copy_only=False), out=before[1:])
    ends = list_ends(column)
    return pa.array(before[ends[1:]] > before[ends[:-1]])
