"""`ottla topics`: list, describe, create and delete topics."""

from __future__ import annotations

import json
from typing import Any

import click

from ottla.admin import Admin, OffsetAt, OffsetSpec, TopicDescription
from ottla.cli.bootstrap import bootstrap_option
from ottla.cli.options import json_option, settings_option, timeout_option
from ottla.cli.security import security_options
from ottla.config import Security, Timeouts
from ottla.model import TopicPartition


@click.group()
def topics() -> None:
    """Topics of a cluster.

    \b
    Examples:
      ottla topics list
      ottla topics create clicks --partitions 6 --replicas 3 --setting retention.ms=86400000
      ottla topics describe clicks --bootstrap localhost:9092
      ottla topics delete clicks
    """


@topics.command("list")
@bootstrap_option
@security_options
@timeout_option
@json_option
def list_topics(bootstrap: str, security: Security, timeout: float, as_json: bool) -> None:
    """Print the names of all topics but Kafka's internal ones.

    \b
    Example:
      ottla topics list --json
    """
    with Admin(bootstrap, security=security, timeouts=Timeouts(total=timeout)) as admin:
        names = admin.topic_names()
    click.echo(
        json.dumps(names) if as_json else "\n".join(names) or "there are no topics", err=not names and not as_json
    )


@topics.command()
@click.argument("name")
@click.option("--partitions", type=click.IntRange(1), default=1, show_default=True, help="How many.")
@click.option("--replicas", type=click.IntRange(1), help="Copies of each partition.  [default: what the brokers say]")
@settings_option("Topic setting. Repeatable.", example="retention.ms=86400000")
@bootstrap_option
@security_options
@timeout_option
def create(
    name: str,
    partitions: int,
    replicas: int | None,
    settings: dict[str, str],
    bootstrap: str,
    security: Security,
    timeout: float,
) -> None:
    """Create a topic and wait until it can be written to through any broker.

    \b
    Example:
      ottla topics create clicks --partitions 6 --setting cleanup.policy=compact
    """
    with Admin(bootstrap, security=security, timeouts=Timeouts(total=timeout)) as admin:
        admin.create_topic(name, partitions=partitions, replicas=replicas or -1, settings=settings)
    click.echo(f"created {name} with {partitions} partition{'s' if partitions > 1 else ''}")


@topics.command()
@click.argument("names", nargs=-1, required=True)
@bootstrap_option
@security_options
@timeout_option
@json_option
def describe(names: tuple[str, ...], bootstrap: str, security: Security, timeout: float, as_json: bool) -> None:
    """Show leaders, replicas and offsets of every partition.

    \b
    Example:
      ottla topics describe clicks users --json
    """
    with Admin(bootstrap, security=security, timeouts=Timeouts(total=timeout)) as admin:
        found = admin.describe_topics(names)
        partitions = [TopicPartition(topic.name, p.index) for topic in found for p in topic.partitions]
        first = admin.list_offsets(partitions, OffsetSpec.EARLIEST)
        last = admin.list_offsets(partitions, OffsetSpec.LATEST)
    if as_json:
        click.echo(json.dumps([_as_dict(topic, first, last) for topic in found]))
    else:
        click.echo("\n".join(_as_text(topic, first, last) for topic in found))


@topics.command()
@click.argument("names", nargs=-1, required=True)
@bootstrap_option
@security_options
@timeout_option
def delete(names: tuple[str, ...], bootstrap: str, security: Security, timeout: float) -> None:
    """Delete topics with all their records, and wait until no broker knows them.

    \b
    Example:
      ottla topics delete clicks users
    """
    with Admin(bootstrap, security=security, timeouts=Timeouts(total=timeout)) as admin:
        admin.delete_topics(names)
    click.echo(f"deleted {', '.join(names)}")


_Offsets = dict[TopicPartition, OffsetAt]


def _as_dict(topic: TopicDescription, first: _Offsets, last: _Offsets) -> dict[str, Any]:
    return {
        "name": topic.name,
        "id": str(topic.id) if topic.id else None,
        "partitions": [
            {
                "partition": p.index,
                "leader": p.leader,
                "replicas": list(p.replicas),
                "in_sync": list(p.isr),
                "start": first[TopicPartition(topic.name, p.index)].offset,
                "stop": last[TopicPartition(topic.name, p.index)].offset,
            }
            for p in topic.partitions
        ],
    }


def _as_text(topic: TopicDescription, first: _Offsets, last: _Offsets) -> str:
    lines = [f"{topic.name}: {len(topic.partitions)} partitions, {topic.replicas} replicas, id {topic.id}"]
    for p in topic.partitions:
        key = TopicPartition(topic.name, p.index)
        offsets = f"[{first[key].offset}, {last[key].offset})"
        lines.append(
            f"  {p.index:>4}  leader {p.leader}  replicas {_ids(p.replicas)}  in sync {_ids(p.isr)}  {offsets}"
        )
    return "\n".join(lines)


def _ids(ids: tuple[int, ...]) -> str:
    return ",".join(map(str, ids))
