"""Bytes objects read in place: exactly the content of the list, within the memory given, and nothing but bytes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzz.areas import Walled

from ottla.wire.columns import from_bytes, from_list
from ottla.wire.kernels import loading
from ottla.wire.kernels.gathering import UNFIT, gather, measure

pytestmark = pytest.mark.skipif(not loading.is_possible(), reason="nothing is read where it lies on this system")

BYTES, NONE = id(bytes), id(None)


class Named(bytes):
    """A subclass of bytes."""


def gathered(items: list[Any], area: Walled) -> list[bytes | None]:
    ends, nulls = area.int64s(len(items) + 1), area.octets(len(items), 7)
    missing = measure(items, BYTES, NONE, ends, nulls)
    assert missing == sum(item is None for item in items)
    out = area.octets(int(ends[-1]))
    assert gather(items, NONE, ends, out) == len(out)
    content, places = bytes(out), ends.tolist()
    return [
        None if null else content[start:end]
        for start, end, null in zip(places, places[1:], nulls.tolist(), strict=False)
    ]


@given(st.lists(st.one_of(st.none(), st.binary(max_size=40), st.binary(min_size=2000, max_size=3000)), max_size=60))
def test_the_content_comes_out_up_to_the_last_byte_before_forbidden_memory(items: list[bytes | None]) -> None:
    area = Walled()
    for number in range(2):  # at the end of the memory, and at its beginning
        area.begin(number)
        assert gathered(items, area) == items


@pytest.mark.parametrize("stranger", ["text", bytearray(b"a"), memoryview(b"a"), Named(b"a"), 3, object(), [b"a"]])
def test_anything_else_is_refused_before_anything_is_read(stranger: object) -> None:
    for items in ([stranger], [b"a", stranger, b"b"], [None, b"a", stranger]):
        ends, nulls = np.zeros(len(items) + 1, np.int64), np.zeros(len(items), np.uint8)
        assert measure(items, BYTES, NONE, ends, nulls) == UNFIT


def test_arrays_that_do_not_fit_the_list_are_refused() -> None:
    items = [b"abc", b"de"]
    for ends, nulls in ((2, 2), (4, 2), (3, 1), (3, 3)):
        assert measure(items, BYTES, NONE, np.zeros(ends, np.int64), np.zeros(nulls, np.uint8)) == UNFIT
    out = np.zeros(5, np.uint8)
    for places in ([0, 3], [0, 3, 6], [0, 2, 5], [0, 4, 5], [-1, 3, 5], [0, 3, 4]):
        assert gather(items, NONE, np.array(places, np.int64), out) == UNFIT
    assert gather(items, NONE, np.array([0, 3, 5], np.int64), np.zeros(4, np.uint8)) == UNFIT
    for no_list in ((b"abc", b"de"), None, {b"abc": 1}, b"abc"):
        with pytest.raises(TypeError, match="expected a list"):
            measure(no_list, BYTES, NONE, np.zeros(3, np.int64), np.zeros(2, np.uint8))


def test_a_list_with_a_class_of_its_own_is_read_as_well() -> None:
    class Chunk(list[Any]):
        __slots__ = ()

    ends = np.zeros(3, np.int64)
    assert measure(Chunk([b"abc", b"de"]), BYTES, NONE, ends, np.zeros(2, np.uint8)) == 0
    assert ends.tolist() == [0, 3, 5]


def test_no_reference_is_kept_or_lost() -> None:
    items: list[Any] = [os.urandom(50) for _ in range(100)]
    before = [sys.getrefcount(item) for item in items]
    for _ in range(100):
        from_bytes(items, keys=items)
    assert [sys.getrefcount(item) for item in items] == before


def test_columns_are_the_same_whichever_way_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(7)
    values = [None if chance.random() < 0.2 else os.urandom(chance.choice([0, 1, 100])) for _ in range(500)]
    keys = [None if chance.random() < 0.2 else b"%d" % chance.randrange(9) for _ in values]
    inputs: list[list[Any]] = [
        *(values, [*values, "text"], [*values, Named(b"own")], []),
        *(list(zip(keys, values, strict=True)), [*zip(keys, values, strict=True), b"value alone"]),
    ]

    def columns() -> list[str]:
        made = [from_list(items) for items in inputs] + [from_bytes(values), from_bytes(values, keys=keys)]
        return [repr([np.asarray(part).tolist() for part in (*c.key, *c.value)]) + repr(c.data_bytes) for c in made]

    where_they_lie = columns()
    monkeypatch.setattr("ottla.wire.columns._CAN_READ_OBJECTS", False)
    assert columns() == where_they_lie


def test_without_the_layout_of_this_interpreter_nothing_is_read_where_it_lies() -> None:
    """As on another system, or with kernels that check bounds."""
    code = (
        "from ottla.wire import columns, encode\n"
        "assert not columns._CAN_READ_OBJECTS\n"
        "made = columns.from_list([b'abc', None, (b'k', b'v')])\n"
        "print(made.count, made.data_bytes)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "NUMBA_DISABLE_JIT": "1"}, capture_output=True, text=True
    )
    assert (ran.stdout, ran.stderr) == ("3 5\n", "")
