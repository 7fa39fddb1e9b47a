"""The ledger: what reading it costs, what damage it detects, and entries of earlier versions."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from tests.lake import stock

from ottla.errors import LakeDamaged
from ottla.lake.checksummed import seal, unseal
from ottla.lake.lake import Lake
from ottla.lake.ledger import Ledger
from ottla.lake.values import ENTRY_KEYS
from ottla.model import OffsetRange, TopicPartition


def span(start: int, stop: int) -> OffsetRange:
    return OffsetRange("clicks", 0, start, stop)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = stock.create(tmp_path)
    for number in range(3):
        stock.archive(lake, span(number * 5, number * 5 + 5))
    return lake


def test_looking_for_the_newest_entry_lists_no_entries(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[Path] = []
    real = os.listdir

    def counted(path: Path) -> list[str]:
        listed.append(Path(path))
        return real(path)

    monkeypatch.setattr(os, "listdir", counted)
    other = Lake.open(lake.path)
    for _ in range(3):
        assert other.positions() == {TopicPartition("clicks", 0): 15}
    stock.archive(lake, span(15, 20))
    assert other.positions() == {TopicPartition("clicks", 0): 20}
    assert lake.ledger.path not in listed
    assert lake.ledger.marks in listed
    assert os.listdir(lake.ledger.marks) == [f"{4:020d}"]


def test_the_newest_entry_is_read_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.positions()
    monkeypatch.setattr(Ledger, "read", lambda self, number: pytest.fail("it was read again"))
    assert lake.positions() == {TopicPartition("clicks", 0): 15}


def test_entries_that_came_after_the_mark_are_found(lake: Lake) -> None:
    for number in os.listdir(lake.ledger.marks):
        os.rename(lake.ledger.marks / number, lake.ledger.marks / f"{1:020d}")
    last = Lake.open(lake.path).ledger.last()
    assert last is not None
    assert last.number == 3


def test_a_mark_without_its_entry_is_reported(lake: Lake) -> None:
    os.unlink(lake.ledger.path / lake.ledger.name(3))
    for look in (lake.ledger.last, lake.ledger.numbers, Lake.open(lake.path).ledger.last):
        with pytest.raises(LakeDamaged, match=r"0003\.json was published and is missing"):
            look()


def test_an_entry_of_an_earlier_version_says_the_same(lake: Lake) -> None:
    before = list(lake.ledger.entries())
    for number in lake.ledger.numbers():
        file = lake.ledger.path / lake.ledger.name(number)
        row = msgspec.json.decode(file.read_bytes())
        del row["checksum"], row["stored"]
        file.write_bytes(msgspec.json.encode(row))
    assert list(Lake.open(lake.path).ledger.entries()) == before


def test_every_changed_byte_of_an_entry_is_noticed(lake: Lake) -> None:
    content = (lake.ledger.path / lake.ledger.name(1)).read_bytes()
    for place in range(len(content)):
        for bit in range(8):
            changed = bytearray(content)
            changed[place] ^= 1 << bit
            with pytest.raises((ValueError, msgspec.MsgspecError)):
                unseal(bytes(changed), ENTRY_KEYS)


def test_a_sealed_row_comes_back() -> None:
    row = {"a": [1, 2.5, None], "b": {"checksum": "0" * 64}}
    assert unseal(seal(row), ()) == row
