"""The reference of the commands, made from what `--help` shows: a page for each command of `ottla`.

Commands of click come in, Markdown goes out. It runs no command.
"""

from __future__ import annotations

import html
import inspect
import re
from collections.abc import Iterator

import click

from ottla.cli import cli
from ottla.cli.root import COMMANDS

_SPECIAL = re.compile(r"([\\`*_{}\[\]|#])")
_CODE = re.compile(r"'(?=ottla )(.+?)'|(?<![\w-])(--[a-z][a-z-]*)")
_WIDTH = 100
_UNWRAPPED = 10_000


def names() -> list[str]:
    """Return the names of all commands that have a page."""
    return cli.list_commands(click.Context(cli))


def overview() -> str:
    """Return the page that lists all commands."""
    lines = [
        "# Commands",
        "",
        "Each page says what `ottla COMMAND --help` says. [What all commands share](../../cli.md).",
        "",
    ]
    lines += ["| command | |", "| --- | --- |"]
    lines += [f"| [`ottla {name}`]({name}.md) | {_text(COMMANDS[name].summary)} |" for name in names()]
    return "\n".join([*lines, ""])


def page(name: str) -> str:
    """Return the page of a command, with its subcommands."""
    root = click.Context(cli, info_name="ottla")
    command = cli.get_command(root, name)
    if command is None:
        raise ValueError(f"no command {name!r}")
    extra = COMMANDS[name].extra
    lines = [f"# ottla {name}", ""]
    if extra:
        lines += [f"Needs the extra `{extra}`: `pip install 'ottla[{extra}]'`.", ""]
    return "\n".join([*lines, *_described(command, name, root)])


def _described(command: click.Command, name: str, parent: click.Context) -> Iterator[str]:
    context = click.Context(command, info_name=name, parent=parent, terminal_width=_WIDTH)
    yield from ("```text", command.get_usage(context).removeprefix("Usage: "), "```", "")
    yield from _help(command)
    if isinstance(command, click.Group):
        subcommands = [(each, command.get_command(context, each)) for each in command.list_commands(context)]
        visible = [(each, subcommand) for each, subcommand in subcommands if subcommand and not subcommand.hidden]
        yield from ("| command | |", "| --- | --- |")
        for each, subcommand in visible:
            path = f"{context.command_path} {each}"
            yield f"| [`{path}`](#{path.replace(' ', '-')}) | {_text(_summary(subcommand))} |"
        yield ""
    else:
        visible = []
    yield from _options(command, context)
    for each, subcommand in visible:
        yield from (f"{'#' * _level(context)} {context.command_path} {each}", "")
        yield from _described(subcommand, each, context)


def _level(context: click.Context) -> int:
    return len(context.command_path.split())


def _summary(command: click.Command) -> str:
    return command.get_short_help_str(limit=_UNWRAPPED)


def _help(command: click.Command) -> Iterator[str]:
    """The text of a command: paragraphs, and blocks that click leaves as they are."""
    for block in re.split(r"\n\s*\n", inspect.cleandoc(command.help or "")):
        lines = block.splitlines()
        if lines and lines[0].strip() == "\b":
            title = lines[1] if len(lines) > 2 and lines[1].endswith(":") and lines[2].startswith(" ") else ""
            body = lines[2:] if title else lines[1:]
            yield from ([_text(title), ""] if title else [])
            yield from ("```text", *inspect.cleandoc("\n" + "\n".join(body)).splitlines(), "```", "")
        elif block.strip():
            yield from (_text(" ".join(line.strip() for line in lines)), "")


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    records = [parameter.get_help_record(context) for parameter in command.get_params(context)]
    # The usage has arguments that need no words.
    rows = [record for record in records if record is not None and record[1] and not record[0].endswith("--help")]
    if rows:
        yield from ("| option | |", "| --- | --- |")
        for declaration, text in rows:
            yield f"| `{declaration}` | {_text(text)} |"
        yield ""


def _text(text: str) -> str:
    """Return prose of a help text as Markdown: options and commands are code, everything else means itself."""
    plain = " ".join(text.split())
    parts, stop = [], 0
    for match in _CODE.finditer(plain):
        parts += [_escaped(plain[stop : match.start()]), f"`{match[1] or match[2]}`"]
        stop = match.end()
    return "".join([*parts, _escaped(plain[stop:])])


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", html.escape(text, quote=False))
