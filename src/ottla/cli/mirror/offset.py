"""`ottla mirror offset`: which offset of the target an offset of the source is, or the other way round."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ottla.cli.completion.values import complete_topics
from ottla.cli.errors import CommandFailed, UsageError
from ottla.cli.mirror.links import require_link
from ottla.cli.mirror.sides import brief_timeout_option, journal_option, link_name_option, side_option, within
from ottla.cli.options.common import json_option
from ottla.cli.options.types import Integer, parsed
from ottla.cli.output.json_text import json_text

if TYPE_CHECKING:
    from ottla.jobs.brokers import Brokers
    from ottla.jobs.mirror_maps import PartitionMap


def _place(text: str) -> tuple[str, int | None]:
    topic, separator, partition = text.rpartition(":")
    if not separator:
        return text, None
    if not partition.isdecimal():
        raise ValueError(f"{text!r} is not TOPIC or TOPIC:PARTITION")
    return topic, int(partition)


@click.command()
@click.argument("place", metavar="TOPIC[:PARTITION]", callback=parsed(_place), shell_complete=complete_topics)
@click.argument("number", metavar="OFFSET", type=Integer(0))
@side_option("to")
@link_name_option
@click.option("--reverse", is_flag=True, help="TOPIC and OFFSET are those of the target; show the source's.")
@journal_option
@brief_timeout_option
@json_option
def offset(
    *,
    place: tuple[str, int | None],
    number: int,
    target: Brokers,
    link: str,
    reverse: bool,
    journal: str,
    timeout: float,
    as_json: bool,
) -> None:
    """Show where a reader of the source at OFFSET continues at the target: at the same record.

    If that record does not exist, it is the next one. The answer is exact; where it is not known, because the record
    is not mirrored yet or nothing is left of that part of the log, the exit code is 1.

    \b
    Examples:
      ottla mirror offset clicks:0 1500 --to hub:9092 --name oslo
      ottla mirror offset oslo.clicks:0 1503 --to hub:9092 --name oslo --reverse
    """
    from ottla.jobs.mirror_maps import known_maps, settled_maps
    from ottla.mirror.journal import Journal

    with within(target, timeout).cluster() as cluster:
        require_link(cluster, journal, link)
        kept = Journal(cluster, link=link, topic=journal)
        selected = _selected(known_maps(kept), place, link=link, reverse=reverse)
        [found] = settled_maps(kept, cluster, [selected])
    result = found.to_source(number) if reverse else found.to_target(number)
    here, there = (found.target, found.source) if reverse else (found.source, found.target)
    if as_json:
        source_offset, target_offset = (result, number) if reverse else (number, result)
        row = {
            "link": link,
            "topic": found.source.topic,
            "partition": found.source.partition,
            "offset": source_offset,
            "target_topic": found.target.topic,
            "target_partition": found.target.partition,
            "target_offset": target_offset,
        }
        click.echo(json_text(row))
    if result is None:
        raise CommandFailed(f"offset {number:,} of {here} {_why(found, number, reverse=reverse)}")
    if not as_json:
        click.echo(f"{here} offset {number:,} is {there} offset {result:,}")


def _selected(maps: list[PartitionMap], place: tuple[str, int | None], *, link: str, reverse: bool) -> PartitionMap:
    topic, partition = place
    by_partition = {(each.target if reverse else each.source): each for each in maps}
    of_topic = {tp.partition: each for tp, each in by_partition.items() if tp.topic == topic}
    if not of_topic:
        side = "to" if reverse else "from"
        known = ", ".join(sorted({tp.topic for tp in by_partition})) or "nothing"
        raise CommandFailed(f"link {link} mirrors nothing {side} a topic {topic}: it has {known}")
    if partition is None:
        if len(of_topic) > 1:
            raise UsageError(f"topic {topic} has several partitions: write {topic}:PARTITION")
        partition = next(iter(of_topic))
    if partition not in of_topic:
        raise CommandFailed(f"link {link} has not mirrored partition {partition} of topic {topic} yet")
    return of_topic[partition]


def _why(found: PartitionMap, number: int, *, reverse: bool) -> str:
    if reverse or number < found.first:
        return "lies before the first record that the map still has"
    return f"is not mirrored yet: the mirror has everything before {found.reached:,}"
