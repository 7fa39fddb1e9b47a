"""`ottla query`: where topics begin and end, the offset of a time, how many records there are and what they are like.

Offsets are asked of the brokers; counts and profiles are added up from the headers of batches, and nothing is
decompressed. No record is printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ottla.cli import Failure, Misuse
from ottla.cli.options.bootstrap import bootstrap_option
from ottla.cli.options.connecting import soon
from ottla.cli.options.general import json_option, timeout_option
from ottla.cli.options.reading import (
    from_option,
    isolation_option,
    parsed,
    partition_option,
    topics_argument,
    until_option,
)
from ottla.cli.options.security import security_options
from ottla.cli.values.json_text import json_text
from ottla.cli.values.places import Fixed, Place
from ottla.cli.values.times import parse_time
from ottla.cli.values.units import show_size
from ottla.cli.views.tables import table, terminal_width

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
@click.option("--offsets", is_flag=True, help="Where each partition begins and ends. What is asked without any other.")
@click.option("--at", "at", metavar="TIME", callback=parsed(_time), help="The first record at or after this time.")
@click.option("--count", is_flag=True, help="How many records there are; holes in the offsets do not count.")
@click.option("--profile", is_flag=True, help="Records, batches, bytes, codecs, times and producers.")
@from_option
@until_option("With --count or --profile: latest, an offset, a time, group:NAME.  [default: latest]")
@partition_option
@isolation_option
@bootstrap_option
@security_options
@timeout_option
@json_option
@click.pass_context
def query(
    context: click.Context,
    /,
    topics: tuple[str, ...],
    *,
    offsets: bool,
    at: datetime | None,
    count: bool,
    profile: bool,
    start: Place,
    stop: Fixed | None,
    partitions: list[int] | None,
    isolation: str,
    bootstrap: str,
    security: Security,
    timeout: float,
    as_json: bool,
) -> None:
    """Answer a question about TOPICs: --offsets, --at TIME, --count or --profile.

    Counts and profiles are read from the headers of batches, from --from to --until; nothing is decompressed. With
    read_committed, the end is where the oldest open transaction begins.

    \b
    Examples:
      ottla query clicks                          first and last offset of each partition
      ottla query clicks --at -2h                 where the last two hours begin
      ottla query clicks --count                  a number, for scripts
      ottla query clicks users --count --json
      ottla query clicks --profile --from 2026-01-01T00:00:00Z
      ottla query clicks --count --from group:billing     what that group has not read yet
    """
    from ottla.admin import Admin
    from ottla.cli.reading.resolving import Wanted
    from ottla.config import Timeouts
    from ottla.fetch.options import parse_isolation
    from ottla.fetch.reader import Reader

    asked = {"--offsets": offsets, "--at": at is not None, "--count": count, "--profile": profile}
    given = [option for option, is_given in asked.items() if is_given]
    if len(given) > 1:
        raise Misuse(f"{' and '.join(given)} are different questions: ask one of them")
    if not (count or profile) and _is_given(context, "start", "stop"):
        raise Misuse("--from and --until are for --count and --profile")
    level = parse_isolation(isolation)
    if count or profile:
        wanted = Wanted(topics=topics, start=start, stop=stop, partitions=partitions, timeout=timeout)
        with Reader(bootstrap, security=security, client_id="ottla-query", isolation=level, retry=soon()) as reader:
            found = reader.profile(wanted.ranges(reader))
        _print_counts(topics, found, as_json=as_json) if count else _print_profiles(found, as_json=as_json)
        return
    with Admin(
        bootstrap, security=security, client_id="ottla-query", timeouts=Timeouts(total=timeout), retry=soon()
    ) as admin:
        where = _partitions(admin, topics, partitions)
        rows = _ends(admin, where, level) if at is None else _at(admin, where, at, level)
    _print(rows, as_json=as_json)


def _is_given(context: click.Context, *names: str) -> bool:
    return any(context.get_parameter_source(name) is not ParameterSource.DEFAULT for name in names)


def _partitions(admin: Admin, topics: Sequence[str], only: Sequence[int] | None) -> list[TopicPartition]:
    from ottla.model import TopicPartition

    found = [TopicPartition(one.name, p.index) for one in admin.describe_topics(topics) for p in one.partitions]
    wanted = [TopicPartition(topic, index) for topic in topics for index in only or ()]
    missing = [at for at in wanted if at not in found]
    if missing:
        raise Failure(f"there is no partition {', '.join(map(str, missing))}")
    return wanted or found


def _ends(admin: Admin, where: list[TopicPartition], isolation: Isolation) -> list[_Row]:
    from ottla.admin import OffsetSpec

    first = admin.list_offsets(where, OffsetSpec.EARLIEST, isolation=isolation)
    last = admin.list_offsets(where, OffsetSpec.LATEST, isolation=isolation)
    return [{**at._asdict(), "start": first[at].offset, "stop": last[at].offset} for at in sorted(where)]


def _at(admin: Admin, where: list[TopicPartition], when: datetime, isolation: Isolation) -> list[_Row]:
    """The end of the log where no record is that late: reading from there gives all that will be."""
    from ottla.admin import OffsetSpec
    from ottla.cli.reading.texts import show_time

    found = admin.list_offsets(where, when, isolation=isolation)
    after = [at for at, one in found.items() if one.offset < 0]
    ends = admin.list_offsets(after, OffsetSpec.LATEST, isolation=isolation) if after else {}
    return [
        {
            **at._asdict(),
            "offset": ends[at].offset if at in ends else found[at].offset,
            "timestamp": None if at in ends else show_time(found[at].timestamp),
        }
        for at in sorted(where)
    ]


def _print_counts(topics: Sequence[str], found: Sequence[PartitionProfile], *, as_json: bool) -> None:
    rows = [{"topic": topic, "records": sum(p.records for p in found if p.range.topic == topic)} for topic in topics]
    if as_json or len(rows) > 1:
        _print(rows, as_json=as_json)
    else:
        click.echo(str(rows[0]["records"]))


def _print_profiles(found: Sequence[PartitionProfile], *, as_json: bool) -> None:
    rows = [_profile(one) for one in found]
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


_ONLY_JSON = ("transactional", "control")


def _profile(one: PartitionProfile) -> _Row:
    from ottla.cli.reading.texts import show_time

    return {
        **one.range.topic_partition._asdict(),
        "start": one.range.start,
        "stop": one.range.stop,
        "records": one.records,
        "batches": one.batches,
        "bytes": one.bytes,
        "codecs": dict(one.codecs),
        "first": show_time(one.first_timestamp),
        "last": show_time(one.last_timestamp),
        "producers": one.producers,
        "transactional": one.transactional,
        "control": one.control,
    }


def _print(rows: Sequence[_Row], *, as_json: bool) -> None:
    if as_json:
        click.echo(json_text(rows))
        return
    cells = [[_cell(name, value) for name, value in row.items()] for row in rows]
    click.echo(table([name.upper() for name in rows[0]], cells, width=terminal_width()))


def _cell(name: str, value: object) -> str:
    if isinstance(value, int) and name in ("records", "batches"):
        return f"{value:,}"
    return "-" if value is None else str(value)
