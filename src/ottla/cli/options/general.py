"""Options that several commands have in common. `--bootstrap` has a module of its own, `bootstrap`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
timeout_option = click.option(
    "--timeout", type=click.FloatRange(min=0.1), default=20.0, show_default=True, help="Seconds until it gives up."
)


def settings_option(text: str, *, example: str) -> Callable[[_Command], _Command]:
    """`--setting KEY=VALUE`, any number of times; the command gets `settings: dict[str, str]`."""

    def parse(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
        pairs = [value.partition("=") for value in values]
        for key, separator, _ in pairs:
            if not separator or not key.strip():
                # Not shown: the values of some settings are secrets.
                raise click.BadParameter(f"one of them is not KEY=VALUE, for example {example}", context, parameter)
        return {key.strip(): content.strip() for key, _, content in pairs}

    return click.option("--setting", "settings", multiple=True, callback=parse, metavar="KEY=VALUE", help=text)
