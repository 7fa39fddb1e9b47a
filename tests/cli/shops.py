"""Handlers for tests of `ottla work run`: modules in a folder of the test, which write down what they were given."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

_SHOP = """
import os, pathlib, time

HERE = pathlib.Path(__file__).parent
NOT_CALLABLE = 5

def _note(*lines):
    with open(HERE / f"seen-{os.getpid()}", "a") as file:
        file.writelines(f"{line}\\n" for line in lines)

def records(record):
    _note(f"{record.partition}:{record.offset}")

def batches(batch):
    _note(*(f"{at}:{offset}" for at, offset in zip(batch["partition"].to_pylist(), batch["offset"].to_pylist())))

def ranges(one):
    _note(*(f"{one.partition}:{offset}" for offset in range(one.start, one.stop)))

def unit(one):
    for batch in one.read():
        batches(batch)

def fails_at_100(one):
    if one.range.start == 100 and not (HERE / "repaired").exists():
        raise ValueError("no\\nluck today")
    unit(one)

def waits(one):
    (HERE / f"begun-{os.getpid()}").touch()
    while not (HERE / "go").exists():
        time.sleep(0.01)
    unit(one)

def no_argument(): ...
def two_arguments(a, b): ...
def any_arguments(*some, more=1): ...
async def coroutine(a): ...
def generator(a): yield a

class Till:
    @staticmethod
    def ring(record): ...
"""


class Shop:
    """A module with handlers in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = f"shop_{abs(hash(str(folder)))}"
        (folder / f"{self.name}.py").write_text(_SHOP)

    def handler(self, function: str) -> str:
        """For `--handler`."""
        return f"{self.name}:{function}"

    def seen(self) -> list[str]:
        """What the handlers of all processes were given: partition and offset."""
        return sorted(line for file in self.folder.glob("seen-*") for line in file.read_text().split())

    def begun(self) -> set[int]:
        """Processes in which `waits` does."""
        return {int(file.name.partition("-")[2]) for file in self.folder.glob("begun-*")}

    def let_go(self) -> None:
        """`waits` goes on."""
        (self.folder / "go").touch()

    def forget(self) -> None:
        """What was seen so far."""
        for file in self.folder.glob("seen-*"):
            file.unlink()


def offsets(counts: dict[int, int], times: int = 1) -> list[str]:
    """What handlers see when they are given so many records of each partition."""
    return sorted(f"{at}:{offset}" for at, count in counts.items() for offset in range(count) for _ in range(times))


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """In the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return Shop(tmp_path)
