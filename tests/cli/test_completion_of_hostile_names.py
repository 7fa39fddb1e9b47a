"""Completion of names that strangers chose, in real shells with a terminal: each becomes one word, and runs nothing."""

from __future__ import annotations

import os
import pty
import select
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from .commands import SECONDS

NAMES = (
    "$(touch marker):",
    "$(touch marker)=",
    "`touch marker`",
    "a;touch marker;",
    "a&touch marker&",
    "a|touch marker",
    ">marker",
    "#a",
    "~root",
    "=ls",
    "it's",
    'say "a"',
    "$'a'",
    "back\\slash\\",
    "two  words ",
    "abc,",
    ",abc",
    "a:b",
    "a:",
    "a=",
    "{a,b}*?[c]",
    "!!",
    "<(touch marker)",
    "%1",
    "^a^b",
    "größe-заказ-注文",
)
CONTROLS = ("a\ntouch marker\n", "a\r", "a\tb", "\x1b[2J", "a\x00b", "")
_STARTS = {
    "bash": (
        ["bash", "--norc", "--noprofile", "-i"],
        "bind 'set bell-style none'; bind 'set enable-bracketed-paste off'; eval \"$(ottla completion bash)\"",
    ),
    "zsh": (["zsh", "-f", "-i"], 'autoload -U compinit; compinit -u -D; eval "$(ottla completion zsh)"'),
    "fish": (["fish", "--no-config", "-i"], "ottla completion fish | source"),
}
_OTTLA = """#!/bin/sh
if [ -z "$_OTTLA_COMPLETE" ] && [ "$1" != completion ]; then
    printf '%s\\0' "$@" > ran.part && mv ran.part ran
    exit
fi
exec {} "$@"
"""
_COMPLETING = """
from pathlib import Path
from ottla.cli.completion import asking
asking._asked = lambda context, question: Path("names").read_bytes().decode().split("\\0\\0")
from ottla.cli import main
main()
"""


class Shell:
    """An interactive shell whose `ottla` completes the names that a test gives, and notes with what it was run."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        program = folder / "ottla"
        program.write_text(_OTTLA.format(shlex.join([sys.executable, "-c", _COMPLETING])))
        program.chmod(0o755)
        command, loading = _STARTS[kind]
        self._main, side = pty.openpty()
        self._shell = subprocess.Popen(
            ["setsid", "--ctty", *command],  # fish wants a terminal that is its own
            stdin=side,
            stdout=side,
            stderr=side,
            cwd=folder,
            env={
                **os.environ,
                "PATH": f"{folder}:{os.environ['PATH']}",
                "HOME": str(folder),
                "TERM": "xterm",
                "LC_ALL": "C.UTF-8",
            },
        )
        os.close(side)
        self._type(f"{loading}; ottla ready\n")
        assert self._arguments() == ["ready"]

    def runs(self, line: str, *names: str) -> list[str]:
        """Return the arguments with which `ottla` is run after TAB and Enter behind a line."""
        (self.folder / "names").write_bytes("\0\0".join(names).encode())
        self._type(f"{line}\t\n")
        arguments = self._arguments()
        assert not (self.folder / "marker").exists()
        return arguments

    def close(self) -> None:
        self._shell.kill()
        self._shell.wait(SECONDS)
        os.close(self._main)

    def _type(self, text: str) -> None:
        os.write(self._main, text.encode())

    def _arguments(self) -> list[str]:
        ran, shown, deadline = self.folder / "ran", b"", time.monotonic() + SECONDS
        while not ran.exists():
            assert time.monotonic() < deadline, shown
            if select.select([self._main], [], [], 0.02)[0]:
                shown += os.read(self._main, 65536)
        arguments = ran.read_text(encoding="utf-8").split("\0")[:-1]
        ran.unlink()
        return arguments


@pytest.fixture(scope="module", params=["bash", "zsh", "fish"])
def shell(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    with closing(Shell(request.param, tmp_path_factory.mktemp(request.param))) as started:
        yield started


@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_name_becomes_one_word(shell: Shell, name: str) -> None:
    is_offered = shell.kind != "fish" or not name.startswith("~")
    assert shell.runs("ottla groups describe ", name) == ["groups", "describe", *[name][:is_offered]]


def test_names_with_control_characters_never_reach_the_line(shell: Shell) -> None:
    assert shell.runs("ottla groups describe ", *CONTROLS) == ["groups", "describe"]
    assert shell.runs("ottla groups describe ", *CONTROLS, "good") == ["groups", "describe", "good"]


def test_a_name_that_begins_with_a_dash_is_no_option(shell: Shell) -> None:
    assert shell.runs("ottla groups delete ", "--yes", "-n") == ["groups", "delete"]
    assert shell.runs("ottla consume x --group ", "-n") == ["consume", "x", "--group", "-n"]


@pytest.mark.parametrize("shell", ["bash"], indirect=True)
@pytest.mark.parametrize("quote", ["'", '"'])
@pytest.mark.parametrize("name", ["z$(touch marker)", "z`touch marker`:", "z it's", 'z"a"', "z\\", "z!!", "z:a", "z,"])
def test_a_quote_that_is_open_stays_one_word(shell: Shell, quote: str, name: str) -> None:
    assert shell.runs(f"ottla groups describe {quote}z", name) == ["groups", "describe", name]


@pytest.mark.parametrize("shell", ["bash"], indirect=True)
@pytest.mark.parametrize(
    ("begun", "name"),
    [
        *(
            ("a@", "a@b"),
            ("a@b", "a@bc"),
            ("@", "@a"),
            ("a@@", "a@@b"),
            ("a:@", "a:@b"),
            ("a@:", "a@:b"),
            ("a=@", "a=@b"),
        ),
        *((r"a\:", "a:b"), (r"a\@b\ ", "a@b c"), ("'a:b'c", "a:bcd"), ("'a'@", "a@b"), ("a@'", "a@b"), ('a:"', "a:b")),
    ],
)
def test_what_bash_takes_for_a_word_of_its_own_stays(shell: Shell, begun: str, name: str) -> None:
    """Regression: an @ got lost, and so did what stood before a colon in quotes: that is another group."""
    assert shell.runs(f"ottla groups describe {begun}", name) == ["groups", "describe", name]
    assert shell.runs(f"ottla consume x --group={begun}", name) == ["consume", "x", f"--group={name}"]
