"""The group `ottla lag`: its commands are imported when they are used.

`ottla lag GROUP...` is short for `ottla lag show GROUP...`. A group with the name of a command needs the long form.
"""

from __future__ import annotations

import click

from ottla.cli.lazy import Entry, LazyGroup

COMMANDS = {
    "board": Entry("ottla.cli.lag.board", "Print the Grafana board for the metrics of 'ottla lag serve'."),
    "serve": Entry("ottla.cli.lag.serve", "Poll for ever: Burrow's HTTP interface, metrics, history, webhook."),
    "show": Entry("ottla.cli.lag.show", "Show lag once or again and again. 'ottla lag' is short for it."),
}


class _Lag(LazyGroup):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `show` before arguments that name no command."""
        if not args or (args[0] not in self.entries and args[0] not in ctx.help_option_names):
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Lag, entries=COMMANDS)
def lag() -> None:
    """Show how far groups are behind: in records, in seconds, and what is wrong with them.

    Consumer groups of all kinds, share groups, fleets of Ottla, mirrors, and streaming queries of Spark, in one table.
    'ottla lag GROUP...' is short for 'ottla lag show GROUP...'; a group with the name of a command needs the long form.

    \b
    Examples:
      ottla lag
      ottla lag billing audit --for 1m
      ottla lag --topic 'shop\\..*' --watch
      ottla lag --json | jq 'select(.state != "OK")'
      ottla lag serve --http 127.0.0.1:8000 --history lag.db --keep 7d
    """
