"""What commands show on a terminal: a real one, and the sentences and pictures that are made for one."""

from __future__ import annotations

import ast
import os
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from screens.__main__ import FOLDER
from screens.scenes import SCENES
from screens.svg import picture
from screens.terminal import Cell, Terminal

from ottla.cli.output.wrapping import wrapped
from ottla.cli.terminal.screen import Screen
from ottla.testing import FakeKafka
from ottla.wire.kernels import notices

from .commands import PROGRAM, run

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "terminal.md"
COMMANDS = ROOT / "src" / "ottla" / "cli"


def test_a_table_on_a_terminal_has_strong_headings(tmp_path: Path) -> None:
    with FakeKafka(topics={"clicks": 2}) as kafka:
        command = f"{' '.join(PROGRAM)} query clicks --bootstrap {kafka.bootstrap}"
        with Terminal(command, folder=tmp_path, environment=os.environ) as terminal:
            terminal.until(lambda text: False)
            headings, *rows = terminal.shown()
    assert len(rows) == 2
    assert all(cell.is_bold for cell in headings if cell.text.strip())
    assert not any(cell.is_bold for row in rows for cell in row)


def test_no_command_makes_styles_printable() -> None:
    """A text that was made for a width has styles on a terminal: their sequences would be spelled out."""
    for module in COMMANDS.rglob("*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "printable":
                inner = [call for call in ast.walk(node.args[0]) if isinstance(call, ast.Call)]
                assert not any(keyword.arg == "width" for call in inner for keyword in call.keywords), module


def test_a_sentence_is_broken_between_words() -> None:
    text = "broker 3 is registered but not up and holds 20 replicas"
    assert wrapped(text, None, indent=4) == text
    lines = ("x" * 9 + wrapped(text, 30, indent=4, before=9)).splitlines()
    assert all(len(line) <= 30 for line in lines)
    assert all(line.startswith("    ") for line in lines[1:])
    assert " ".join(line.strip() for line in lines).removeprefix("x" * 9) == text


def test_a_command_says_before_it_compiles_kernels(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(notices, "_listeners", [])
    monkeypatch.setattr(notices, "_said", set())
    assert run("profiles").exit_code == 0
    for module in ("ottla.wire.kernels.scanning", "ottla.wire.kernels.decoding", "ottla.wire.kernels.encoding"):
        notices.compiling(module)
    assert capsys.readouterr().err == (
        "compiling kernels for reading on this machine, once: about 4 s\n"
        "compiling kernels for writing on this machine, once: about 4 s\n"
    )


def test_a_terminal_that_cannot_be_drawn_on_gets_each_text_below_the_last(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    screen = Screen()
    screen.show("one")
    screen.show("two")
    assert capsys.readouterr().out == "one\ntwo\n"


def test_a_picture_has_each_run_of_cells_at_its_place() -> None:
    row = [*map(Cell, "a<b  "), *(Cell(sign, "red", is_bold=True) for sign in "STOP"), *map(Cell, "    ")]
    root = ElementTree.fromstring(picture("ottla lag", [row], columns=20, title="Lag"))
    texts = {
        (element.text, element.get("class")): (float(element.get("x", 0)), float(element.get("textLength", 0)))
        for element in root
        if element.tag.endswith("text")
    }
    (start, _), (place, length) = texts["a<b", None], texts["STOP", "red b"]
    assert (place - start) / 5 == length / 4 == 8  # a cell is 8 wide, in all rows
    assert re.search(r"prefers-color-scheme:dark", ElementTree.tostring(root, encoding="unicode"))


def test_the_page_shows_every_picture() -> None:
    shown = set(re.findall(r"\(pictures/screens/([a-z-]+)\.svg\)", PAGE.read_text()))
    assert shown == {scene.name for scene in SCENES} == {file.stem for file in FOLDER.glob("*.svg")}
