"""Old spellings of options: each works, warns once, is hidden from help, and is in the documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from ottla.cli import cli
from ottla.cli.options.old import OldSpelling
from ottla.testing import FakeKafka

from .commands import run

DOCUMENT = Path(__file__).parents[2] / "docs" / "cli.md"
SAMPLES = {"--to-time": "-2h", "--to-offset": "7", "--to-group": "billing", "--shift": "-5", "--start": "latest"}
SAMPLES |= {"--group": "archiver", "--heap-mb": "512", "--batch-size": "64MB", "--max-message": "2MB"}


def _commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _commands(found, (*path, name))


def _old_spellings() -> list[Any]:
    return [
        pytest.param(command, option, id=" ".join((*path, option.old)))
        for path, command in _commands(cli)
        for option in command.params
        if isinstance(option, OldSpelling)
    ]


@pytest.mark.parametrize(("command", "option"), _old_spellings())
def test_an_old_spelling_gives_its_value_to_the_new_one(
    command: click.Command, option: OldSpelling, capsys: pytest.CaptureFixture[str]
) -> None:
    context = click.Context(command)
    assert option.name is not None
    [target] = [param for param in command.params if option.new in param.opts]
    assert target.name is not None
    assert not isinstance(target, OldSpelling)
    given: dict[str, Any] = {option.name: True if option.is_flag else SAMPLES.get(option.old, "100000")}
    option.handle_parse_result(context, given, [])
    assert capsys.readouterr().err == f"warning: {option.old} is now {option.successor}\n"
    target.process_value(context, given[target.name])
    assert option.get_help_record(context) is None
    row = rf"\| [^|]* \| `{re.escape(option.old)}[ `][^|]*\| `{re.escape(option.new)}[ `]"
    assert re.search(row, DOCUMENT.read_text()), "it is not in the table of docs/cli.md"


def test_the_documentation_names_no_others() -> None:
    rows = re.findall(r"^\| [^|]* \| `(--[a-z-]+)", DOCUMENT.read_text().partition("## Old spellings")[2], re.M)
    assert set(rows) == {param.values[1].old for param in _old_spellings()}


def test_an_old_spelling_works_and_warns_once() -> None:
    with FakeKafka(topics={"clicks": 1}) as fake:
        ended = run("consume", "clicks", "--exit-at-end", "--max-batch-bytes", "200000", "--bootstrap", fake.bootstrap)
    assert (ended.exit_code, ended.stdout) == (0, "")
    assert ended.stderr.splitlines() == [
        "warning: --exit-at-end is now --until latest",
        "warning: --max-batch-bytes is now --max-batch-size",
    ]


def test_an_old_and_a_new_spelling_together_are_refused() -> None:
    ended = run("groups", "reset", "billing", "--to", "latest", "--shift", "5", "--bootstrap", "localhost:1")
    assert ended.exit_code == 2
    assert "error: --shift is now --to shift:N: give it only once" in ended.stderr
