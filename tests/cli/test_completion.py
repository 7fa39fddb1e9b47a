"""Completion: a real bash with a terminal, and the protocol of zsh and fish."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ottla import Admin
from ottla.cli.completion.topic_settings import NAMES
from ottla.cluster import LocalCluster

from .commands import PROGRAM, SECONDS, run

TOPICS = ("completing-clicks", "completing-orders", "completing-orders-old")
GROUPS = ("completing-billing", "completing odd")
_SHOWN = re.compile("<<(?!%)(.*?)>>")
_PROFILES = '[profiles.prod]\nbootstrap = "{}"\n[profiles.preview]\nbootstrap = "127.0.0.1:1"\n'


@pytest.fixture(scope="module")
def named(kafka: LocalCluster) -> LocalCluster:
    """The shared cluster, with topics and groups of known names."""
    with Admin(kafka.bootstrap) as admin:
        for topic in TOPICS:
            admin.create_topic(topic, partitions=1)
    for group in GROUPS:
        reset = ("groups", "reset", group, "--to", "earliest", "--topic", TOPICS[0], "--new", "--yes")
        assert run(*reset, "--bootstrap", kafka.bootstrap).exit_code == 0
    return kafka


class Bash:
    """An interactive bash that has loaded the script, and shows its line on request."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        program = folder / "ottla"
        program.write_text(f'#!/bin/sh\nexec {shlex.join(PROGRAM)} "$@"\n')
        program.chmod(0o755)
        self._main, side = pty.openpty()
        variables = {**os.environ, **environment, "PATH": f"{folder}:{os.environ['PATH']}", "TERM": "dumb"}
        self._shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            stdin=side,
            stdout=side,
            stderr=side,
            env=variables,
            start_new_session=True,
        )
        os.close(side)
        self._send("eval \"$(ottla completion bash)\"; bind 'set bell-style none'\n")
        # Ctrl-T shows the line, Ctrl-U empties it.
        self._send('bind -x \'"\\C-t": printf "<<%s>>\\n" "$READLINE_LINE"\'\n')

    def tab(self, line: str) -> str:
        """Return what becomes of a line when TAB is pressed at its end."""
        self._send(f"{line}\t\x14")
        shown = self._await(_SHOWN)
        self._send("\x15")
        return shown

    def close(self) -> None:
        self._shell.kill()
        self._shell.wait(SECONDS)
        os.close(self._main)

    def _send(self, text: str) -> None:
        os.write(self._main, text.encode())

    def _await(self, wanted: re.Pattern[str]) -> str:
        seen, deadline = "", time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            if select.select([self._main], [], [], 1.0)[0]:
                seen += os.read(self._main, 65536).decode()
            if match := wanted.search(seen):
                return match[1]
        raise AssertionError(f"bash shows {seen!r}")


@pytest.fixture(scope="module")
def bash(named: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bash]:
    folder = tmp_path_factory.mktemp("bash")
    (folder / "config.toml").write_text(_PROFILES.format(named.bootstrap))
    variables = {"OTTLA_BOOTSTRAP": named.bootstrap, "OTTLA_CONFIG": str(folder / "config.toml")}
    with closing(Bash(folder, variables)) as shell:
        yield shell


@pytest.mark.broker
@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("ottla pro", "ottla pro"),  # produce and profiles
        ("ottla prof", "ottla profiles "),
        ("ottla topics desc", "ottla topics describe "),
        ("ottla consume x --isolation read_c", "ottla consume x --isolation read_committed "),
        ("ottla topics describe completing-c", "ottla topics describe completing-clicks "),
        ("ottla topics describe completing-o", "ottla topics describe completing-orders"),
        ("ottla topics describe completing-orders completing-o", "... completing-orders completing-orders-old "),
        ("ottla groups describe completing-", "ottla groups describe completing-billing "),
        ("ottla consume x --group completing\\ ", "ottla consume x --group completing\\ odd "),
        ("ottla consume x --from gr", "ottla consume x --from group:"),
        ("ottla consume x --from group:completing-b", "ottla consume x --from group:completing-billing "),
        ("ottla topics alter x --setting reten", "ottla topics alter x --setting retention."),
        ("ottla topics alter x --setting retention.m", "ottla topics alter x --setting retention.ms="),
        ("ottla topics list --profile pro", "ottla topics list --profile prod "),
        ("ottla mirror x --from pro", "ottla mirror x --from profile:pr"),
        ("ottla nosuch x", "ottla nosuch x"),
    ],
)
def test_bash_completes(bash: Bash, line: str, completed: str) -> None:
    _completes(bash, line, completed)


@pytest.mark.broker
def test_the_cluster_is_that_of_the_line(bash: Bash, named: LocalCluster) -> None:
    """Bash itself takes an address for several words."""
    for place in (f"--bootstrap {named.bootstrap}", "--profile prod"):
        line = f"ottla topics describe {place} completing-c"
        _completes(bash, line, f"{line}licks ")
    line = f"ottla mirror --from {named.bootstrap} completing-c"
    _completes(bash, line, f"{line}licks ")
    # Nothing listens there.
    line = "ottla topics describe --profile preview completing-c"
    assert bash.tab(line) == line


def _completes(bash: Bash, line: str, completed: str) -> None:
    """A second is the time that a cluster gets, and not enough on a machine that is busy: TAB is pressed again."""
    deadline = time.monotonic() + SECONDS
    wanted = completed.removeprefix("...")
    while not (shown := bash.tab(line)).endswith(wanted) and time.monotonic() < deadline:
        assert shown == line
    assert shown.endswith(wanted)


def _answer(shell: str, words: str, position: str, **environment: str) -> tuple[str, str]:
    variables = {"_OTTLA_COMPLETE": f"{shell}_complete", "COMP_WORDS": words, "COMP_CWORD": position, **environment}
    ended = subprocess.run(
        PROGRAM, env={**os.environ, **variables}, capture_output=True, text=True, timeout=SECONDS, check=True
    )
    return ended.stdout, ended.stderr


def test_zsh_and_fish_get_help_texts_with_the_values() -> None:
    assert _answer("zsh", "ottla prof", "1") == (
        "plain\nprofiles\nList the clusters that your settings file names.\n",
        "",
    )
    out, _ = _answer("fish", "ottla cons", "cons")
    assert out == "plain,consume\tPrint the records of topics, or write them to a file.\n"


@pytest.mark.broker
def test_zsh_and_fish_complete_names(named: LocalCluster) -> None:
    where = {"OTTLA_BOOTSTRAP": named.bootstrap}
    _answers("plain\ncompleting-clicks\n_\n", "zsh", "ottla topics describe completing-c", "3", **where)
    _answers("plain,completing-billing\n", "fish", "ottla groups describe completing-b", "completing-b", **where)


def _answers(wanted: str, *question: str, **environment: str) -> None:
    deadline = time.monotonic() + SECONDS
    while (out := _answer(*question, **environment)[0]) != wanted and time.monotonic() < deadline:
        assert not out.strip()
    assert out == wanted


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_is_printed(shell: str) -> None:
    ended = run("completion", shell)
    assert ended.exit_code == 0
    assert f"_OTTLA_COMPLETE={shell}_complete" in ended.stdout
    assert run("completion", "tcsh").exit_code == 2


def test_a_cluster_that_does_not_answer_is_waited_for_a_second_and_nothing_is_printed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        assert _answer("zsh", "ottla topics describe c", "3", OTTLA_BOOTSTRAP=address) == ("\n", "")
        assert time.monotonic() - began < 20  # a command would wait as long


@pytest.mark.parametrize(
    ("words", "position"),
    [("ottla topics describe c --profile nosuch ", "5"), ("ottla cluster kill ", "3")],
)
def test_what_is_wrong_on_the_line_is_not_said(words: str, position: str, tmp_path: Path) -> None:
    assert _answer("zsh", words, position, OTTLA_DIR=str(tmp_path)) == ("\n", "")


def test_brokers_and_names_of_local_clusters_are_completed(tmp_path: Path) -> None:
    folder = tmp_path / "hub"
    folder.mkdir()
    (folder / "state.json").write_text('{"nodes": [{"id": 1}, {"id": 2}, {"id": 10}]}')
    where = {"OTTLA_DIR": str(tmp_path)}
    out, _ = _answer("zsh", "ottla cluster kill --name hub 1 ", "6", **where)
    assert re.findall(r"plain\n(\d+)\n", out) == ["2", "10"]
    assert _answer("zsh", "ottla cluster status --name h", "4", **where)[0] == "plain\nhub\n_\n"


@pytest.mark.broker
def test_the_known_settings_of_topics_are_those_of_the_broker(named: LocalCluster) -> None:
    with Admin(named.bootstrap) as admin:
        settings = admin.settings([TOPICS[0]])[TOPICS[0]]
    assert sorted(NAMES) == sorted(name for name in settings if not name.startswith("internal."))


def test_a_tab_imports_only_what_it_needs(tmp_path: Path) -> None:
    def imported(words: str, position: str) -> set[str]:
        variables = {"_OTTLA_COMPLETE": "zsh_complete", "COMP_WORDS": words, "COMP_CWORD": position}
        ended = subprocess.run(
            [sys.executable, "-X", "importtime", *PROGRAM[1:]],
            env={**os.environ, **variables, "OTTLA_BOOTSTRAP": "127.0.0.1:1"},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=True,
        )
        return {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines()}

    heavy = {"kio", "pyarrow", "psutil", "numba", "pyspark", "redis"}
    assert not imported("ottla topics desc", "2") & {*heavy, "numpy", "ssl", "ottla.net"}
    assert not imported("ottla groups describe b", "3") & heavy
