"""The group `ottla mirror`: its commands are imported when they are used.

`ottla mirror TOPIC...` is short for `ottla mirror run TOPIC...`: what does not begin with the name of a command goes to
`run`, unless it asks for help. A topic with the name of a command needs the long form.
"""

from __future__ import annotations

import click

from ottla.cli.lazy import Entry, LazyGroup, suggest

COMMANDS = {
    "check": Entry("ottla.cli.mirror.check", "Say what the links of a file would do; write nothing."),
    "groups": Entry("ottla.cli.mirror.groups", "Translate offsets of groups, there or back, once."),
    "offset": Entry("ottla.cli.mirror.offset", "Show which offset of the target a source offset is."),
    "run": Entry("ottla.cli.mirror.run", "Mirror topics. 'ottla mirror TOPIC...' is short for it."),
    "status": Entry("ottla.cli.mirror.status", "Show lag, rate and errors of links."),
}


class _Mirror(LazyGroup):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `run` before arguments that name no command."""
        if args and args[0] not in self.entries and args[0] not in ctx.help_option_names:
            is_word = not args[0].startswith("-")
            if is_word and not any(arg == "--from" or arg.startswith("--from=") for arg in args):
                suggest(ctx, args[0], self.entries)  # without a source it is no topic, but a command with a typo
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Mirror, entries=COMMANDS)
def mirror() -> None:
    """Mirror topics from one cluster to another, exactly once.

    Batches are passed on as they are, still compressed, with partitions, keys, headers and timestamps. A mirror that
    was killed continues where it was: nothing is lost, repeated or reordered. 'ottla mirror TOPIC...' is short for
    'ottla mirror run TOPIC...'; a topic that has the name of a command needs the long form.

    \b
    Examples:
      ottla mirror clicks --from edge:9092 --to hub:9092
      ottla mirror 'shop.*' --from edge:9092 --to hub:9092 --rename '{source}.{topic}' --name oslo --follow
      ottla mirror check links.toml
      ottla mirror --config links.toml --follow
      ottla mirror status --to hub:9092 --watch
    """
