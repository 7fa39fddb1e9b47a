"""Links an object file into an image: position-independent machine code, with slots for the addresses that it needs.

Comes in: an ELF object for x86-64, of code and constants that refer to each other by distance. Goes out: an `Image`.
Anything else (writable data, a reference by address, a function that is not in `SYMBOLS`) is rejected, so what can be
linked neither raises, nor allocates, nor keeps state.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

SYMBOLS = (
    *("memcpy", "memmove", "memset"),
    *("PyErr_Occurred", "PyEval_RestoreThread", "PyEval_SaveThread"),
    *("PyLong_AsLongLong", "PyLong_FromLongLong", "Py_IncRef"),
)
"""Functions that an image may call."""

_X86_64 = 62
_RELOCATABLE = 1
_FILE_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_CODE, _SYMBOL_TABLE, _RELOCATIONS, _UNWINDING = 1, 2, 4, 0x70000001  # types of sections
_WRITTEN, _ALLOCATED = 1, 2  # flags of sections
_BY_DISTANCE = (2, 4)  # R_X86_64_PC32, R_X86_64_PLT32: both are a 32-bit distance here
_JUMP = b"\xff\x25\x00\x00\x00\x00"  # to the address in the eight bytes after it
_STEP_BYTES = 16
_ALIGNED = 64


class Image(NamedTuple):
    """Machine code. `places` has the byte of the entry ("entry"), and where the addresses of symbols go."""

    code: bytes
    places: dict[str, int]


class NotLinkable(Exception):
    """The object contains something that an image must not have; the text says what."""


class _Section(NamedTuple):
    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


class _Symbol(NamedTuple):
    name: str
    section: int
    value: int


def link(data: bytes, entry: str) -> Image:
    """Link an object file whose entry is the symbol `entry`. Raises `NotLinkable`."""
    sections = _sections(data)
    code = bytearray()
    starts: dict[int, int] = {}
    for number, section in enumerate(sections):
        if not section.flags & _ALLOCATED or not section.size or section.type == _UNWINDING:
            continue  # unwinding tables: no exception passes through
        if section.type != _CODE or section.flags & _WRITTEN:
            raise NotLinkable(f"section {number} is not just code or constants")
        code += bytes(-len(code) % max(section.alignment, 1))
        starts[number] = len(code)
        code += data[section.offset : section.offset + section.size]
    # Jump stubs for external functions follow, aligned to a cache line.
    code += bytes(-len(code) % _ALIGNED)
    places: dict[str, int] = {}
    for section in sections:
        if section.type == _RELOCATIONS and section.info in starts:
            symbols = _symbols(data, sections, sections[section.link])
            for offset, info, addend in _rows(data, section, _RELOCATION):
                if info & 0xFFFFFFFF not in _BY_DISTANCE:
                    raise NotLinkable(f"a reference has type {info & 0xFFFFFFFF}")
                target = _address(symbols[info >> 32], starts, places, code)
                place = starts[section.info] + offset
                struct.pack_into("<i", code, place, target + addend - place)
    tables = [section for section in sections if section.type == _SYMBOL_TABLE]
    entries = [symbol for table in tables for symbol in _symbols(data, sections, table) if symbol.name == entry]
    if len(entries) != 1 or entries[0].section not in starts:
        raise NotLinkable(f"no function {entry}")
    return Image(bytes(code), {**places, "entry": starts[entries[0].section] + entries[0].value})


def _sections(data: bytes) -> list[_Section]:
    """Parse the section headers of an ELF file. Raises `NotLinkable` for any other file."""
    if len(data) < _FILE_HEADER.size or data[:6] != b"\x7fELF\x02\x01":
        raise NotLinkable("not a 64-bit ELF object")
    _, kind, machine, *_ = fields = _FILE_HEADER.unpack_from(data)
    if (kind, machine) != (_RELOCATABLE, _X86_64):
        raise NotLinkable(f"type {kind} for machine {machine}")
    start, count = fields[6], fields[12]
    return [_Section(*_SECTION.unpack_from(data, start + i * _SECTION.size)) for i in range(count)]


def _rows(data: bytes, section: _Section, layout: struct.Struct) -> list[tuple[int, ...]]:
    return list(layout.iter_unpack(data[section.offset : section.offset + section.size]))


def _symbols(data: bytes, sections: list[_Section], table: _Section) -> list[_Symbol]:
    """Parse a symbol table. Names are in the string table that it links to."""
    names = sections[table.link].offset
    return [
        _Symbol(data[names + name : data.index(b"\0", names + name)].decode(), section, value)
        for name, _, _, section, value, _ in _rows(data, table, _SYMBOL)
    ]


def _address(symbol: _Symbol, starts: dict[int, int], places: dict[str, int], code: bytearray) -> int:
    """Return where a symbol is in the image. An external one gets a jump stub."""
    if symbol.section in starts:
        return starts[symbol.section] + symbol.value
    if symbol.name not in SYMBOLS:
        raise NotLinkable(f"refers to {symbol.name or 'nothing'}")
    if symbol.name not in places:
        places[symbol.name] = len(code) + len(_JUMP)
        code += _JUMP.ljust(_STEP_BYTES, b"\0")
    return places[symbol.name] - len(_JUMP)
