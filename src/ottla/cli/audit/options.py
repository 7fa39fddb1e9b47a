"""Options that the commands of `ottla audit` share."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from ottla.cli.completion.values import complete_topics
from ottla.cli.errors import UsageError
from ottla.cli.options.types import Duration, parsed
from ottla.cli.values.times import parse_time

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _time(text: str) -> datetime:
    return parse_time(text, now=datetime.now(UTC))


def _tier(text: str) -> str:
    from ottla.tally.values import check_name

    return check_name("tier", text)


def _event_time(text: str) -> str:
    from ottla.jobs import event_time

    return str(event_time.parse(text))


def tier_option(text: str, *, is_required: bool = False, is_multiple: bool = False) -> Callable[[_Command], _Command]:
    """Give a command `--tier NAME` and the argument `tier: str` or `tiers: tuple[str, ...]`."""
    name = "tiers" if is_multiple else "tier"
    return click.option(
        "--tier", name, required=is_required, multiple=is_multiple, metavar="NAME", callback=parsed(_tier), help=text
    )


start_option = click.option("--from", "start", metavar="TIME", callback=parsed(_time), help="Leave out what is older.")
_stop_option = click.option("--until", "stop", metavar="TIME", callback=parsed(_time), help="Leave out what is newer.")


def window_options(command: _Command) -> _Command:
    """Give a command `--from TIME` and `--until TIME`, and the arguments `start` and `stop`."""
    return start_option(_stop_option(command))


def require_order(start: datetime | None, stop: datetime | None) -> None:
    """Raise `UsageError` if `--until` does not lie after `--from`."""
    if start is not None and stop is not None and stop <= start:
        raise UsageError(f"--until {stop:%Y-%m-%dT%H:%M:%SZ} does not lie after --from {start:%Y-%m-%dT%H:%M:%SZ}")


bucket_option = click.option(
    "--bucket",
    "bucket_seconds",
    type=Duration(),
    default="10m",
    show_default=True,
    help="Length of a time bucket: whole seconds, the same for all tiers.",
)
event_time_option = click.option(
    "--event-time",
    "event_time",
    metavar="WHERE",
    default="record",
    show_default=True,
    callback=parsed(_event_time),
    help="Time of a record: record, header:NAME, json:FIELD or json:FIELD.FIELD.",
)
audit_topic_option = click.option(
    "--audit-topic",
    metavar="TOPIC",
    shell_complete=complete_topics,
    default="ottla-audit",
    show_default=True,
    help="The topic with the tallies.",
)
any_partition_option = click.option(
    "--any-partition", is_flag=True, help="Accept that records are in another partition than before."
)
engine_option = click.option(
    "--engine",
    type=click.Choice(["local", "spark"]),
    default="local",
    show_default=True,
    help="What does the work: this process, or Spark.",
)
