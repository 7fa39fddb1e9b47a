"""What options and commands of kcat, of Kafka's console tools and of others are called here, for errors.

The unknown name and the context of the command come in, the rest of a sentence goes out. Old
spellings, which a command hides, are never suggested.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import click

from ottla.cli.options.old import OldSpelling

_SIMILAR = 0.7
"""How similar a name must be to be suggested, from 0 to 1."""


class _Renamed(NamedTuple):
    """Another tool's option. With an `option`, or an `argument`, the hint is for commands that have it.

    `{usage}` in the text is the command with that argument.
    """

    text: str
    option: str = ""
    argument: str = ""


_BOOTSTRAP = _Renamed("it is --bootstrap HOST:PORT,... here", "--bootstrap")
_TOPIC = (
    _Renamed("the topic is an argument here, as in '{usage}'", argument="TOPIC"),
    _Renamed("the topic is an argument here, as in 'ottla consume TOPIC'"),
)
_GROUP = (
    _Renamed("it is --group NAME here", "--group"),
    _Renamed("the group is an argument here, as in '{usage}'", argument="GROUP"),
)
_CONSUMER_GROUP = (*_GROUP, _Renamed("that is 'ottla consume TOPIC --group NAME'"))
_START = _Renamed("it is --from PLACE here: earliest, latest, an offset, -N for the last N, or a time", "--from")
_COUNT = _Renamed("it is --max-records N here", "--max-records")
_SETTING = _Renamed("it is --setting KEY=VALUE here", "--setting")
_CONNECTION = _Renamed("settings are options of their own here, such as --tls and --username")
_KEY_SEPARATOR = _Renamed("it is --key-separator SEP here", "--key-separator")
_REPLICATION = _Renamed("it is --replicas N here", "--replicas")
_EXECUTE = _Renamed("resets are executed unless --dry-run is given; --yes skips the question", "--dry-run")

_TABLE: dict[str, tuple[_Renamed, ...]] = {
    # kcat
    "-b": (_BOOTSTRAP,),
    "-C": (_Renamed("that is the command 'ottla consume TOPIC'"),),
    "-P": (_Renamed("that is the command 'ottla produce TOPIC'"),),
    "-L": (_Renamed("that is the command 'ottla topics list', or 'ottla topics describe TOPIC'"),),
    "-Q": (_Renamed("that is the command 'ottla query TOPIC --at TIME'"),),
    "-G": _CONSUMER_GROUP,
    "-t": _TOPIC,
    "-p": (_Renamed("it is --partition here", "--partition"),),
    "-o": (_START,),
    "-e": (_Renamed("it is --until latest here", "--until"),),
    "-c": (_COUNT,),
    "-f": (_Renamed("it is --format here, as in --format '{key}: {value}\\n'", "--format"),),
    "-J": (_Renamed("it is --json here", "--json"),),
    "-K": (_KEY_SEPARATOR,),
    "-k": (_Renamed("it is --key here", "--key"),),
    "-H": (_Renamed("it is --header KEY=VALUE here", "--header"),),
    "-z": (_Renamed("it is --compression here", "--compression"),),
    "-Z": (_Renamed("it is --null-value TEXT here", "--null-value"),),
    "-X": (_CONNECTION,),
    # the console tools
    "--bootstrap-server": (_BOOTSTRAP,),
    "--bootstrap-servers": (_BOOTSTRAP,),
    "--broker-list": (_BOOTSTRAP,),
    "--brokers": (_BOOTSTRAP,),
    "--topic": _TOPIC,
    "--group": _GROUP,
    "--from-beginning": (_Renamed("it is --from earliest here", "--from"),),
    "--offset": (_START, _Renamed("it is --to PLACE here", "--to")),
    "--max-messages": (_COUNT,),
    "--timeout-ms": (_Renamed("it is --timeout DURATION here, as in --timeout 5s", "--timeout"),),
    "--isolation-level": (_Renamed("it is --isolation here", "--isolation"),),
    "--property": (_KEY_SEPARATOR,),
    "--formatter-property": (_KEY_SEPARATOR,),
    "--reader-property": (_KEY_SEPARATOR,),
    "--compression-codec": (_Renamed("it is --compression here", "--compression"),),
    "--request-required-acks": (_Renamed("it is --acks here", "--acks"),),
    "--config": (_SETTING,),
    "--add-config": (_SETTING,),
    "--replication-factor": (_REPLICATION,),
    "--execute": (_EXECUTE,),
    "--reset-offsets": (_Renamed("that is the command 'ottla groups reset GROUP'"),),
    "--list": (_Renamed("that is a command: 'ottla topics list', 'ottla groups list'"),),
    "--describe": (_Renamed("that is a command: 'ottla topics describe', 'ottla groups describe'"),),
    "--create": (_Renamed("that is the command 'ottla topics create TOPIC'"),),
    "--alter": (_Renamed("that is the command 'ottla topics alter TOPIC'"),),
    "--delete": (_Renamed("that is a command: 'ottla topics delete', 'ottla groups delete'"),),
    "--command-config": (_CONNECTION,),
    "--consumer.config": (_CONNECTION,),
    "--producer.config": (_CONNECTION,),
    "--consumer-property": (_CONNECTION,),
    "--producer-property": (_CONNECTION,),
    # what is called otherwise in other commands of ours
    "--fleet": _GROUP,
    "--value": (_Renamed("values are lines of a file or of standard input, as in 'echo VALUE | ottla produce TOPIC'"),),
}

_COMMANDS: dict[str, str] = {
    "add": "create",
    "get": "describe",
    "info": "describe",
    "ls": "list",
    "new": "create",
    "remove": "delete",
    "rm": "delete",
    "serve": "run",
    "show": "describe",
    "start": "up",
}
"""What commands are called elsewhere."""
_FLAGS = {"help": "--help", "version": "--version"}


def advice(name: str, context: click.Context | None) -> str:
    """Return what to write instead of an unknown option, with the words before it; nothing if that is unknown."""
    command = None if context is None else context.command
    options = [] if command is None else [param for param in command.params if isinstance(param, click.Option)]
    known = {name: name for option in options if not option.hidden for name in (*option.opts, *option.secondary_opts)}
    renamed = _TABLE.get(name, ())
    for row in renamed:
        usage = "" if context is None else _usage(context, row.argument)
        if (not row.option or row.option in known) and (not row.argument or usage):
            return f": {row.text.replace('{usage}', usage)}"
    if isinstance(command, click.Group) and context is not None:
        if renamed and _has_below(context, command, renamed[0].option):
            return f": commands call it {renamed[0].option}, which comes after their names"
        if name in ("--bootstrap", "--profile") and _has_below(context, command, name):
            return f": it comes after the name of the command, as in '{_first_command(context)} {name} ...'"
    import difflib

    known |= {option.old: option.successor for option in options if isinstance(option, OldSpelling)}
    close = difflib.get_close_matches(name, known, 1, _SIMILAR) if name.startswith("--") else []
    return f": did you mean {known[close[0]]}?" if close else ""


def _usage(context: click.Context, argument: str) -> str:
    """Return the command with the first argument of this kind; nothing without one."""
    for param in context.command.params:
        if argument and isinstance(param, click.Argument) and argument in param.make_metavar(context):
            return f"{context.command_path} {argument}"
    return ""


def _has_below(context: click.Context, group: click.Group, option: str) -> bool:
    """Return whether a command of a group, or of a group in it, has an option."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            if _has_below(context, command, option):
                return True
        elif command is not None and any(option in param.opts for param in command.params):
            return True
    return False


def _first_command(context: click.Context) -> str:
    return "ottla topics list" if context.parent is None else f"{context.command_path} COMMAND"


def command_advice(path: str, name: str, commands: Collection[str]) -> str:
    """Return what to write instead of an unknown command, with the words before it; nothing if that is unknown."""
    if name in _FLAGS:
        return f": did you mean '{path if name == 'help' else 'ottla'} {_FLAGS[name]}'?"
    import difflib

    close = [_COMMANDS[name]] if _COMMANDS.get(name) in commands else difflib.get_close_matches(name, commands, 1)
    return f": did you mean '{path} {close[0]}'?" if close else ""
