"""Turns a page of the documentation into the steps that its reader takes: files, Python blocks, commands.

The text of a page comes in, steps with their line numbers go out. A page that breaks the convention of CONTRIBUTING.md
raises `PageError`. Nothing here runs anything.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

LANGUAGES = frozenset({"python", "sh", "output", "text"})
"""Languages of blocks without a title. With a title, a block is a file, of any language."""
_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<info>.*)$")
_TITLE = re.compile(r"""\btitle=(?:"([^"]*)"|'([^']*)'|(\S+))""")
_NOT_RUN = re.compile(r"^ *<!-- *not run: *(.*?) *-->$")
_MARK = re.compile(r"\s#\s(?P<mark>until Ctrl-C(?P<stays>.*\bterminal of its own\b)?|exit code (?P<code>\d+)).*$")
_UNTIL_CTRL_C = re.compile(r"#\s*until Ctrl-C")
_LIST_ITEM = re.compile(r"^ *([-*+]|\d+[.)]) ")
# What mkdocs indents its content for: admonitions and tabs.
_INDENTING = ("!!!", "???", "===")
_UNFINISHED = ("\\", "|", "&&", "||")
_UP = "ottla cluster up"


class PageError(Exception):
    """A page breaks the convention. `line` counts from 1."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(f"line {line}: {what}")
        self.line = line


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. `line` is that of its first line of text."""

    language: str
    title: str
    line: int
    text: str
    not_run: str


class End(Enum):
    """How a command ends."""

    BY_ITSELF = "by itself"
    CTRL_C = "at Ctrl-C, before the next command"
    STAYS = "at Ctrl-C, when the page ends"


@dataclass(frozen=True, slots=True)
class Script:
    """Lines of a `sh` block that bash runs together. `code` is the exit code that they end with."""

    line: int
    text: str
    code: int = 0
    end: End = End.BY_ITSELF


@dataclass(frozen=True, slots=True)
class Output:
    """What a block prints. `...` in it stands for anything."""

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Commands:
    """A `sh` block."""

    line: int
    scripts: tuple[Script, ...]
    output: Output | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """A `python` block. `is_endless` ones run until Ctrl-C."""

    line: int
    source: str
    is_endless: bool
    output: Output | None = None

    @property
    def raises(self) -> bool:
        """Whether its output ends with an exception."""
        return self.output is not None and "Traceback (most recent call last):" in self.output.text


@dataclass(frozen=True, slots=True)
class File:
    """A block with a title."""

    line: int
    name: str
    text: str


Step = Commands | Program | File


def blocks(text: str) -> list[Block]:
    """Return the fenced blocks of a page."""
    found = []
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        opening = _FENCE.match(lines[number])
        number += 1
        if opening is None:
            continue
        first = number
        indent, fence = len(opening["indent"]), opening["fence"]
        closing = re.compile(rf" *{fence[0]}{{{len(fence)},}} *$")
        while number < len(lines) and not closing.match(lines[number]):
            number += 1
        if number == len(lines):
            raise PageError(first, "the block is not closed")
        content = "\n".join(_without_indent(line, indent) for line in lines[first:number])
        number += 1
        mark = _NOT_RUN.match(lines[first - 2]) if first > 1 else None
        found.append(_block(opening["info"].strip(), first + 1, content, mark[1] if mark else ""))
    return found


def _without_indent(line: str, indent: int) -> str:
    return line[indent:] if not line[:indent].strip() else line.lstrip()


def _block(info: str, line: int, text: str, not_run: str) -> Block:
    language = re.split(r"[\s{]", info, maxsplit=1)[0]
    title = _TITLE.search(info)
    name = next((group for group in title.groups() if group is not None), "") if title else ""
    if not name and language not in LANGUAGES:
        known = ", ".join(sorted(LANGUAGES))
        raise PageError(line - 1, f"a block of {language!r}: use {known}, or a title for a file")
    return Block(language, name, line, text, not_run)


def steps(text: str) -> list[Step]:
    """Return what the reader of a page does, in order."""
    done: list[Step] = []
    takes_output = is_run = False
    for block in blocks(text):
        if block.language == "output" and not block.title:
            if not takes_output:
                raise PageError(block.line, "an output block without a python or sh block before it")
            takes_output = False
            last = done[-1] if done else None
            if is_run and not isinstance(last, File) and last is not None:
                done[-1] = replace(last, output=Output(block.line, block.text))
            continue
        takes_output = not block.title and block.language in ("python", "sh")
        is_run = not block.not_run
        if is_run:
            done.extend(_step(block))
    return done


def _step(block: Block) -> Iterator[Step]:
    if block.title:
        yield File(block.line, block.title, block.text + "\n")
    elif block.language == "python":
        yield Program(block.line, block.text, is_endless=_UNTIL_CTRL_C.search(block.text) is not None)
    elif block.language == "sh":
        yield Commands(block.line, tuple(_scripts(block)))


def _scripts(block: Block) -> Iterator[Script]:
    """Commands with a mark are scripts of their own; what is between them runs together."""
    plain: list[str] = []
    began = number = block.line
    for command in logical_lines(block.text):
        if command.lstrip().startswith("$ "):
            raise PageError(number, "a prompt before a command")
        after = number + command.count("\n") + 1
        mark = _MARK.search(command) if not command.lstrip().startswith("#") else None
        if mark is None:
            if not plain:
                began = number
            plain.append(command)
        else:
            if plain:
                yield Script(began, "\n".join(plain))
                plain = []
            yield _marked(number, command, mark)
        number = after
    if plain:
        yield Script(began, "\n".join(plain))


def _marked(line: int, command: str, mark: re.Match[str]) -> Script:
    text = command[: mark.start()].rstrip()
    if mark["code"] is not None:
        return Script(line, text, code=int(mark["code"]))
    return Script(line, text, end=End.STAYS if mark["stays"] else End.CTRL_C)


def logical_lines(text: str) -> list[str]:
    """Return commands, each with all of its lines: after a backslash, a pipe or `&&` it continues, and so does a
    here-document."""
    commands: list[str] = []
    lines = iter(text.split("\n"))
    for line in lines:
        command = [line]
        while command[-1].rstrip().endswith(_UNFINISHED):
            more = next(lines, None)
            if more is None:
                break
            command.append(more)
        here = re.search(r"<<-?\s*(['\"]?)(\w+)\1", command[-1])
        while here and command[-1].strip() != here[2]:
            more = next(lines, None)
            if more is None:
                break
            command.append(more)
        commands.append("\n".join(command))
    return commands


def starts(taken: list[Step]) -> dict[str, tuple[str, ...]]:
    """Return the clusters that a page starts: their names, and the arguments that say what brokers they have.

    Topics are none of these arguments: other brokers are not needed for them.
    """
    found = {}
    for step in taken:
        for script in step.scripts if isinstance(step, Commands) else ():
            for command in logical_lines(script.text):
                if command.startswith(_UP):
                    name, arguments = _cluster(shlex.split(command.replace("\\\n", " "), comments=True)[3:])
                    found[name] = arguments
    return found


def _cluster(arguments: list[str]) -> tuple[str, tuple[str, ...]]:
    name, kept = "default", []
    words = iter(" ".join(arguments).replace("=", " ").split(" --"))
    for option, _, value in (word.removeprefix("--").partition(" ") for word in words):
        if option == "name":
            name = value
        elif option and option != "topic":
            kept.append(f"--{option} {value}".rstrip())
    return name, tuple(sorted(kept))


def shows_start(taken: list[Step]) -> bool:
    """Whether the page shows what the start of a cluster prints, so that it has to happen."""
    return any(
        isinstance(step, Commands) and step.output and any(_UP in script.text for script in step.scripts)
        for step in taken
    )


def indented_blocks(text: str) -> Iterator[int]:
    """Yield the lines of indented code blocks."""
    is_fenced = re.compile("$^")
    before, parent = "", ""
    is_inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if is_inside:
            is_inside = not is_fenced.match(line)
        elif opening := _FENCE.match(line):
            is_inside = True
            is_fenced = re.compile(rf" *{opening['fence'][0]}{{{len(opening['fence'])},}} *$")
        elif line.startswith(("    ", "\t")) and line.strip():
            if not before.strip() and not (_LIST_ITEM.match(parent) or parent.startswith(_INDENTING)):
                yield number
        elif line.strip():
            parent = line
        before = line


def not_run(text: str) -> list[tuple[int, str]]:
    """Return line and reason of each mark that a block is not run."""
    return [(number, mark[1]) for number, line in enumerate(text.splitlines(), 1) if (mark := _NOT_RUN.match(line))]
