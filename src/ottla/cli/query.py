"""`ottla query`: offsets, counts and statistics of topics, without printing records.

Offsets come from the brokers. Both count and batches are computed from batch headers; nothing is decompressed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ottla.cli.errors import CommandFailed, UsageError
from ottla.cli.options.bootstrap import bootstrap_option
from ottla.cli.options.common import (
    isolation_option,
    json_option,
    partition_option,
    timeout_option,
    topics_argument,
)
from ottla.cli.options.connection import few_retries
from ottla.cli.options.places import from_option, until_option
from ottla.cli.options.security import security_options
from ottla.cli.options.types import parsed
from ottla.cli.output.json_text import json_text
from ottla.cli.output.styles import faint
from ottla.cli.output.tables import table, terminal_width
from ottla.cli.values.places import Place
from ottla.cli.values.quantities import show_size
from ottla.cli.values.times import parse_time, show_timestamp

if TYPE_CHECKING:
    from ottla.admin import Admin
    from ottla.config import Security
    from ottla.fetch.profile import PartitionProfile
    from ottla.model import Isolation, TopicPartition

_Row = dict[str, Any]


def _time(text: str) -> datetime:
    return parse_time(text, now=datetime.now(UTC))


@click.command()
@topics_argument
@click.option("--offsets", is_flag=True, help="First and last offset of each partition. The default.")
@click.option("--at", "moment", metavar="TIME", callback=parsed(_time), help="First record at or after this time.")
@click.option("--count", is_flag=True, help="Number of records, without gaps in the offsets.")
@click.option("--batches", is_flag=True, help="Records, batches, bytes, codecs, timestamps and producers.")
@from_option("With --count or --batches: where to start")
@until_option("With --count or --batches: where to end")
@partition_option
@isolation_option
@bootstrap_option
@security_options
@timeout_option()
@json_option
@click.pass_context
def query(
    context: click.Context,
    /,
    topics: tuple[str, ...],
    *,
    offsets: bool,
    moment: datetime | None,
    count: bool,
    batches: bool,
    start: Place,
    stop: Place | None,
    partitions: list[int] | None,
    isolation: str,
    bootstrap: str,
    security: Security,
    timeout: float,
    as_json: bool,
) -> None:
    """Show --offsets, --at TIME, --count or --batches of TOPICs.

    Both count and batches are computed from batch headers between --from and --until; nothing is decompressed. With
    read_committed, a partition ends where its oldest open transaction starts.

    \b
    Examples:
      ottla query clicks                          first and last offset of each partition
      ottla query clicks --at -2h                 offsets of two hours ago
      ottla query clicks --count                  just the number, for scripts
      ottla query clicks users --count --json
      ottla query clicks --batches --from 2026-01-01T00:00:00Z
      ottla query clicks --count --from group:billing     what this group has not read yet
    """
    from ottla.admin import Admin
    from ottla.cli.ranges import ReadPlan
    from ottla.config import Timeouts
    from ottla.fetch.options import parse_isolation
    from ottla.fetch.reader import Reader

    questions = {"--offsets": offsets, "--at": moment is not None, "--count": count, "--batches": batches}
    given = [option for option, is_given in questions.items() if is_given]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} are mutually exclusive")
    if not (count or batches) and _is_given(context, "start", "stop"):
        raise UsageError("--from and --until need --count or --batches")
    level = parse_isolation(isolation)
    if count or batches:
        plan = ReadPlan(topics=topics, start=start, stop=stop, partitions=partitions, timeout=timeout)
        with Reader(
            bootstrap, security=security, client_id="ottla-query", isolation=level, retry=few_retries()
        ) as reader:
            ranges = plan.ranges(reader)
            plan.say_waits(reader, {part.topic_partition: part.stop for part in ranges})
            profiles = reader.profile(ranges)
        _print_counts(topics, profiles, as_json=as_json) if count else _print_profiles(profiles, as_json=as_json)
        return
    with Admin(
        bootstrap, security=security, client_id="ottla-query", timeouts=Timeouts(total=timeout), retry=few_retries()
    ) as admin:
        selected = _partitions(admin, topics, partitions)
        rows = _ends(admin, selected, level) if moment is None else _at(admin, selected, moment, level)
    _print(rows, as_json=as_json)


def _is_given(context: click.Context, *names: str) -> bool:
    return any(context.get_parameter_source(name) is not ParameterSource.DEFAULT for name in names)


def _partitions(admin: Admin, topics: Sequence[str], only: Sequence[int] | None) -> list[TopicPartition]:
    from ottla.model import TopicPartition

    existing = [
        TopicPartition(topic.name, partition.index)
        for topic in admin.describe_topics(topics)
        for partition in topic.partitions
    ]
    selected = [TopicPartition(topic, index) for topic in topics for index in only or ()]
    missing = [tp for tp in selected if tp not in existing]
    if missing:
        raise CommandFailed(f"no such partition: {', '.join(map(str, missing))}")
    return selected or existing


def _ends(admin: Admin, partitions: list[TopicPartition], isolation: Isolation) -> list[_Row]:
    from ottla.admin import OffsetSpec

    first = admin.list_offsets(partitions, OffsetSpec.EARLIEST, isolation=isolation)
    last = admin.list_offsets(partitions, OffsetSpec.LATEST, isolation=isolation)
    return [{**tp._asdict(), "start": first[tp].offset, "stop": last[tp].offset} for tp in sorted(partitions)]


def _at(admin: Admin, partitions: list[TopicPartition], moment: datetime, isolation: Isolation) -> list[_Row]:
    """Return the offsets of a time: the end of the log where no record is that late."""
    from ottla.admin import OffsetSpec

    offsets = admin.list_offsets(partitions, moment, isolation=isolation)
    after = [tp for tp, first in offsets.items() if first.offset < 0]
    ends = admin.list_offsets(after, OffsetSpec.LATEST, isolation=isolation) if after else {}
    return [
        {
            **tp._asdict(),
            "offset": ends[tp].offset if tp in ends else offsets[tp].offset,
            "timestamp": None if tp in ends else show_timestamp(offsets[tp].timestamp),
        }
        for tp in sorted(partitions)
    ]


def _print_counts(topics: Sequence[str], profiles: Sequence[PartitionProfile], *, as_json: bool) -> None:
    counts = {topic: sum(profile.records for profile in profiles if profile.range.topic == topic) for topic in topics}
    rows = [{"topic": topic, "records": count} for topic, count in counts.items()]
    if as_json or len(rows) > 1:
        _print(rows, as_json=as_json)
    else:
        click.echo(str(rows[0]["records"]))


def _print_profiles(profiles: Sequence[PartitionProfile], *, as_json: bool) -> None:
    rows = [_profile(profile) for profile in profiles]
    if not as_json:
        rows = [
            {
                **{name: value for name, value in row.items() if name not in _ONLY_JSON},
                "bytes": show_size(row["bytes"]),
                "codecs": ", ".join(f"{name} {batches:,}" for name, batches in row["codecs"].items()) or "-",
            }
            for row in rows
        ]
    _print(rows, as_json=as_json)


_LEAST = ("producers", "batches", "codecs")
_ONLY_JSON = ("transactional", "control")


def _profile(profile: PartitionProfile) -> _Row:

    return {
        **profile.range.topic_partition._asdict(),
        "start": profile.range.start,
        "stop": profile.range.stop,
        "records": profile.records,
        "batches": profile.batches,
        "bytes": profile.bytes,
        "codecs": dict(profile.codecs),
        "first": show_timestamp(profile.first_timestamp),
        "last": show_timestamp(profile.last_timestamp),
        "producers": profile.producers,
        "transactional": profile.transactional,
        "control": profile.control,
    }


def _print(rows: Sequence[_Row], *, as_json: bool) -> None:
    if as_json:
        click.echo(json_text(rows))
        return
    cells = [[_cell(name, value) for name, value in row.items()] for row in rows]
    quiet = [row.get("records", row["stop"] - row["start"] if "stop" in row else None) == 0 for row in rows]
    shown = [faint(row) if is_quiet else row for row, is_quiet in zip(cells, quiet, strict=True)]
    click.echo(table(list(rows[0]), shown, width=terminal_width(), least=_LEAST))


def _cell(name: str, value: object) -> str:
    if isinstance(value, int) and name != "partition":
        return f"{value:,}"
    return "-" if value is None else str(value)
