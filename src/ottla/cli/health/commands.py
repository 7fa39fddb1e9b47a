"""The group `ottla health`. `ottla health [OPTIONS]` is short for `ottla health check [OPTIONS]`."""

from __future__ import annotations

import click

from ottla.cli.lazy import Entry, LazyGroup

COMMANDS = {
    "check": Entry("ottla.cli.health.check", "Say what is wrong. 'ottla health' is short for it."),
    "probe": Entry("ottla.cli.health.probe", "Write and read through every broker; serve metrics."),
}


class _Health(LazyGroup):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `check` before arguments that name no command."""
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["check", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Health, entries=COMMANDS)
def health() -> None:
    """Say whether a cluster is healthy, and what is wrong, since when, and what to type next.

    'ottla health' is short for 'ottla health check'. It needs no agent and no JMX: everything is asked of the brokers.

    \b
    Examples:
      ottla health
      ottla health --watch
      ottla health --exit-when-healthy --for 5m && ./deploy
      ottla health check --help
      ottla health probe --for 10s
      ottla health probe --serve 9308
    """
