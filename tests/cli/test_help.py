"""Help of every command: summaries that fit 80 columns, and examples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import pytest

from ottla.cli import cli


def _commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _commands(found, (*path, name))


ALL = [pytest.param(command, id=" ".join(("ottla", *path))) for path, command in _commands(cli)]


@pytest.mark.parametrize("command", ALL)
def test_every_command_has_examples(command: click.Command) -> None:
    assert "Example" in (command.help or "")


@pytest.mark.parametrize("command", [row for row in ALL if isinstance(row.values[0], click.Group)])
def test_summaries_of_commands_fit_a_terminal(command: Any) -> None:
    text = command.get_help(click.Context(command, info_name="ottla", terminal_width=80))
    listed = text.partition("\nCommands:\n")[2].splitlines()
    assert len(listed) == len(command.list_commands(click.Context(command))), "one line each"
    assert not [line for line in listed if line.endswith("...") or len(line) > 80]


WITHOUT_JSON = {
    "cluster logs": "prints the log of a broker",
    "completion": "prints a script for a shell",
    "demo": "tells a story; programs look at its exit code",
    "gateway run": "a server: it prints nothing that a program reads, and has metrics",
    "gateway secret": "prints a line of its settings file",
    "lag board": "prints JSON anyway, for Grafana",
    "lag serve": "a server of JSON",
    "spool export": "prints JSON lines anyway",
    "topics export": "prints TOML for 'topics apply'",
    "work serve": "a server: those who ask for its jobs get the results",
}


@pytest.mark.parametrize(("path", "command"), [(" ".join(path), command) for path, command in _commands(cli)])
def test_every_command_prints_json_for_programs(path: str, command: click.Command) -> None:
    if not isinstance(command, click.Group):
        has_json = any("--json" in option.opts for option in command.params)
        assert has_json != (path in WITHOUT_JSON)
