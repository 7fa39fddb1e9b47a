"""`ottla audit find`: names the records in which two topics differ."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING

import click

from ottla.cli.audit.connecting import brokers_at
from ottla.cli.audit.options import any_partition_option, bucket_option, require_order, window_options
from ottla.cli.completion.values import complete_profile_places, complete_topics
from ottla.cli.errors import Alert
from ottla.cli.options.common import check_topic, isolation_option, json_option, max_batch_size_option, timeout_option
from ottla.cli.options.security import security_options
from ottla.cli.options.types import parsed
from ottla.cli.terminal.progress import LiveLine

if TYPE_CHECKING:
    from ottla.audit.differences import Difference
    from ottla.config import Security


@click.command()
@click.argument("topic", metavar="TOPIC", callback=parsed(check_topic), shell_complete=complete_topics)
@click.option(
    "--left",
    required=True,
    metavar="HOST:PORT,...",
    shell_complete=complete_profile_places,
    help="Brokers of the tier that has the originals, or profile:NAME.",
)
@click.option(
    "--right",
    required=True,
    metavar="HOST:PORT,...",
    shell_complete=complete_profile_places,
    help="Brokers of the tier that should have the same, or profile:NAME.",
)
@click.option(
    "--right-topic",
    metavar="TOPIC",
    callback=parsed(check_topic),
    shell_complete=complete_topics,
    help="The topic's name on the right.",
)
@window_options
@bucket_option
@any_partition_option
@isolation_option
@max_batch_size_option
@security_options
@timeout_option("60s")
@json_option
def find(
    topic: str,
    *,
    left: str,
    right: str,
    right_topic: str | None,
    start: datetime | None,
    stop: datetime | None,
    bucket_seconds: float,
    any_partition: bool,
    isolation: str,
    max_batch_size: int,
    security: Security,
    timeout: float,
    as_json: bool,
) -> None:
    """Name the records of TOPIC that are missing, duplicated or altered on the right.

    Reads both topics once, and the buckets that differ again. With --json, one object a line: verdict, side (whose
    partition and offset follow), partition, offset, key in base64, timestamp in seconds, and for an altered record
    where it is on the other side. The options for TLS and SASL are for both clusters, except for one that is a
    profile. Exit codes: 0 no difference,
    1 failure, 2 usage error, 3 differences.

    \b
    Examples:
      ottla audit find clicks --left edge:9092 --right hq:9092
      ottla audit find clicks --left edge:9092 --right hq:9092 --right-topic edge.clicks --from -2h --until -1h
      ottla audit find clicks --left edge:9092 --right hq:9092 --json | jq -r 'select(.verdict == "missing").offset'
    """
    import json

    from ottla.jobs.finding import find_differences
    from ottla.tally.values import check_bucket

    require_order(start, stop)
    seconds = check_bucket(bucket_seconds)
    sides = [
        brokers_at(address, security=security, timeout=timeout, isolation=isolation, max_batch_size=max_batch_size)
        for address in (left, right)
    ]
    verdicts: Counter[str] = Counter()
    with LiveLine(lambda: f"comparing {topic}: {verdicts.total():,} differences") as live:
        for difference in find_differences(
            topic,
            left=sides[0],
            right=sides[1],
            right_topic=right_topic,
            start=start,
            stop=stop,
            bucket_seconds=seconds,
            by_partition=not any_partition,
            notice=live.say,
        ):
            verdicts[str(difference.verdict)] += 1
            click.echo(json.dumps(difference.to_json()) if as_json else _line(difference))
    if verdicts:
        found = ", ".join(f"{count:,} {verdict}" for verdict, count in sorted(verdicts.items()))
        raise Alert(f"{right_topic or topic} on the right differs from {topic} on the left: {found}")
    if not as_json:
        click.echo("no difference")


def _line(difference: Difference) -> str:
    from ottla.cli.values.times import show_timestamp
    from ottla.text import printable

    key = "" if difference.key is None else f" key {printable(difference.key.decode('utf-8', 'replace'))}"
    when = show_timestamp(round(difference.timestamp * 1000)) or "no time"
    other = ""
    if difference.other_offset is not None:
        other = f", on the right at {difference.other_partition}:{difference.other_offset}"
    detail = f" ({difference.detail})" if difference.detail else ""
    place = f"{difference.side} {difference.partition}:{difference.offset}"
    return f"{difference.verdict:<10} {place} {when}{key}{other}{detail}"
