"""Old spellings of options: they work for one version, are hidden from help, and warn what they are called now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, TypeVar

import click

from ottla.cli.errors import UsageError

_Command = TypeVar("_Command", bound=Callable[..., Any])


class OldSpelling(click.Option):
    """A hidden option that warns, and hands its value to the option `new`."""

    def __init__(self, old: str, new: str, *, form: str, metavar: str, is_flag: bool) -> None:
        name = "old_" + old.lstrip("-").replace("-", "_")
        # Eager: handled before the option that gets the value.
        super().__init__([old, name], hidden=True, expose_value=False, is_eager=True, is_flag=is_flag, default=None)
        self.old = old
        self.new = new
        self._form = form
        self._metavar = metavar

    @property
    def successor(self) -> str:
        """What the option is called now, with its value."""
        value = self._form if self.is_flag else self._form.format(self._metavar)
        return self.new if value in ("", self._metavar) else f"{self.new} {value}"

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        """Warn, and act as if the new option had been given."""
        assert self.name is not None
        given = opts.get(self.name)
        if given is None or not isinstance(opts, MutableMapping):
            return None, args
        target = next(param for param in ctx.command.params if self.new in (*param.opts, *param.secondary_opts))
        assert target.name is not None
        if target.name in opts:
            raise UsageError(f"{self.old} is now {self.successor}: give it only once")
        click.echo(f"warning: {self.old} is now {self.successor}", err=True)
        if isinstance(target, click.Option) and target.is_flag:
            opts[target.name] = self.new in target.opts
        else:
            opts[target.name] = self._form if self.is_flag else self._form.format(given)
        return None, args


def old_spelling(old: str, new: str, *, form: str = "{}", metavar: str = "VALUE") -> Callable[[_Command], _Command]:
    """Give a command the old spelling of an option that takes a value; `form` says how the new value is written."""
    return _adding(lambda: OldSpelling(old, new, form=form, metavar=metavar, is_flag=False))


def old_flag(old: str, new: str, value: str = "") -> Callable[[_Command], _Command]:
    """Give a command the old spelling of a flag, which is now another flag or an option with this value."""
    return _adding(lambda: OldSpelling(old, new, form=value, metavar="", is_flag=True))


def _adding(make: Callable[[], OldSpelling]) -> Callable[[_Command], _Command]:
    def add(command: _Command) -> _Command:
        option = make()
        if isinstance(command, click.Command):
            command.params.append(option)
        else:
            waiting: Any = command
            waiting.__click_params__ = [*getattr(command, "__click_params__", []), option]
        return command

    return add
