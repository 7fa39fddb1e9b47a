"""The group `ottla gateway`: its commands are imported when they are used."""

from __future__ import annotations

import click

from ottla.cli.lazy import Entry, LazyGroup

COMMANDS = {
    "check": Entry("ottla.cli.gateway.check", "Say what a settings file would run; start nothing."),
    "run": Entry("ottla.cli.gateway.run", "Run a gateway until a signal."),
    "secret": Entry("ottla.cli.gateway.secret", "Make a line for the file of secrets."),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def gateway() -> None:
    """Take records over HTTP, and hand them to Kafka.

    Nothing is answered with success before the brokers have acknowledged it, or the disk has it. By default a gateway
    listens on this machine only.

    \b
    Examples:
      ottla gateway run --http 8082
      curl -d '{"user": 7}' -H 'Content-Type: application/json' localhost:8082/v1/topics/clicks/records
      ottla gateway run --config gateway.toml
      ottla gateway secret billing >> secrets.txt
    """
