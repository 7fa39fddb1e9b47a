"""`ottla topics`: list, describe, create, alter, grow and delete topics.

The commands ask `Admin` and hand what it found to `topic_views`; settings come from `topic_settings`.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import click

from ottla.cli import Misuse
from ottla.cli.options.confirming import confirm, dry_run_option, yes_option
from ottla.cli.options.connecting import with_admin
from ottla.cli.options.general import json_option
from ottla.cli.options.topic_settings import keeps_less, topic_settings_options
from ottla.cli.values.json_text import json_text
from ottla.cli.views.tables import terminal_width
from ottla.errors import BrokerError
from ottla.text import printable

if TYPE_CHECKING:
    from ottla.admin import Admin, Setting, TopicDescription
    from ottla.admin.settings import Changes, Settings
    from ottla.cli.views.topics import TopicView

_dry_run_option = click.option("--dry-run", is_flag=True, help="Let the brokers check it and show it; change nothing.")


@click.group()
def topics() -> None:
    """Topics of a cluster.

    \b
    Examples:
      ottla topics list --long
      ottla topics create clicks --partitions 6 --replicas 3 --retention 4d
      ottla topics describe clicks --bootstrap localhost:9092
      ottla topics alter clicks --retention 12h --retention-size 50GB --dry-run
      ottla topics add-partitions clicks --total 12
      ottla topics delete clicks
    """


@topics.command("list")
@click.option("--long", "-l", "is_long", is_flag=True, help="Also partitions, replicas, records, size and state.")
@click.option("--internal", is_flag=True, help="Kafka's internal topics, too.")
@json_option
@with_admin
def list_topics(admin: Admin, *, is_long: bool, internal: bool, as_json: bool) -> None:
    """Print the names of all topics but Kafka's internal ones.

    \b
    Examples:
      ottla topics list
      ottla topics list --long
      ottla topics list --long --json
    """
    from ottla.cli.views.topics import as_dict, overview

    found = [topic for topic in admin.describe_topics() if internal or not topic.internal]
    if as_json:
        names = [topic.name for topic in found]
        click.echo(json_text([as_dict(view) for view in _views(admin, found)] if is_long else names))
    elif not found:
        click.echo("there are no topics", err=True)
    elif is_long:
        click.echo(overview(_views(admin, found), width=terminal_width()))
    else:
        click.echo("\n".join(printable(topic.name) for topic in found))


@topics.command()
@click.argument("names", nargs=-1, required=True)
@json_option
@with_admin
def describe(admin: Admin, *, names: tuple[str, ...], as_json: bool) -> None:
    """Show settings that are not the default, leaders, replicas, offsets and sizes.

    Records are estimated as the distance between a log's first and last offset: compaction and transactions leave holes
    in it. What is wrong with a partition stands in the last column: no leader, a leader that is not the preferred one,
    replicas that are not in sync. --json has everything, also the settings that have their defaults.

    \b
    Examples:
      ottla topics describe clicks
      ottla topics describe clicks users --json
    """
    from ottla.cli.views.topics import as_dict, as_text

    found = admin.describe_topics(names)
    views = _views(admin, found, settings=_visible_settings(admin, names))
    if as_json:
        click.echo(json_text([as_dict(view) for view in views]))
    else:
        click.echo("\n\n".join(as_text(view, width=terminal_width()) for view in views))


@topics.command()
@click.argument("name")
@click.option("--partitions", type=click.IntRange(1), default=1, show_default=True, help="How many.")
@click.option("--replicas", type=click.IntRange(1), help="Copies of each partition.  [default: what the brokers say]")
@topic_settings_options
@_dry_run_option
@json_option
@with_admin
def create(
    admin: Admin,
    *,
    name: str,
    partitions: int,
    replicas: int | None,
    changes: dict[str, str | None],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Create a topic and wait until it can be written to through any broker.

    \b
    Examples:
      ottla topics create clicks --partitions 6 --replicas 3 --retention 4d --retention-size 50GB
      ottla topics create users --cleanup compact --max-message 2MB
      ottla topics create ticks --setting segment.ms=3600000 --dry-run
    """
    from ottla.admin import NewTopic
    from ottla.admin.settings import refuse_unknown
    from ottla.cli.views.topics import setting_dict

    given = {key: value for key, value in changes.items() if value is not None}
    new = NewTopic(name=name, partitions=partitions, replicas=replicas or -1, settings=given)
    if given:
        # Asked without settings first: only so do the brokers tell which ones there are.
        plain = NewTopic(name=name, partitions=partitions, replicas=replicas or -1)
        refuse_unknown(given, admin.check_topic(plain))
    settings = admin.check_topic(new)
    if not dry_run:
        admin.create_topics([new])
    if as_json:
        shown = [setting_dict(one) for one in settings.values()]
        click.echo(json_text({"name": name, "partitions": partitions, "created": not dry_run, "settings": shown}))
    else:
        verb = "would create" if dry_run else "created"
        click.echo(f"{verb} {name} with {partitions} partition{'s' if partitions > 1 else ''}")


@topics.command()
@click.argument("name")
@topic_settings_options
@click.option("--unset", multiple=True, metavar="KEY", help="Take this setting of the topic away. Repeatable.")
@yes_option
@_dry_run_option
@json_option
@with_admin
def alter(
    admin: Admin,
    *,
    name: str,
    changes: dict[str, str | None],
    unset: tuple[str, ...],
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Change settings of a topic, and show them before and after. Settings that are not named stay.

    What may delete records (a shorter retention, another way to clean up) is asked first, unless --yes is given.

    \b
    Examples:
      ottla topics alter clicks --retention 12h --retention-size 50GB
      ottla topics alter clicks --unset retention.ms --dry-run
      ottla topics alter users --cleanup compact,delete --setting min.insync.replicas=2
    """
    from ottla.admin import Apply
    from ottla.admin.settings import refuse_unknown
    from ottla.cli.views.topics import changes_table

    wanted = _all_changes(changes, unset)
    admin.describe_topics(name)  # a topic that is unknown is told at once
    before = admin.settings(name)[name]
    refuse_unknown(wanted, before)
    admin.alter_settings(name, wanted, apply=Apply.CHECK)
    after = _foreseen(admin, before, wanted)
    if not dry_run:
        losing = [key for key, value in after.items() if keeps_less(key, _value(before, key), value)]
        if losing:
            confirm(f"{', '.join(losing)} of topic {printable(name)}: this may delete records", yes=yes)
        admin.alter_settings(name, wanted)
        after = _values(admin.settings(name)[name], wanted)
    rows = [(key, _value(before, key), after[key]) for key in wanted]
    if as_json:
        shown = [{"setting": key, "before": old, "after": new} for key, old, new in rows]
        click.echo(json_text({"name": name, "altered": not dry_run, "changes": shown}))
    else:
        click.echo(f"{name} {'would be altered' if dry_run else 'is altered'}:")
        click.echo(changes_table(rows, width=terminal_width()))


@topics.command("add-partitions")
@click.argument("name")
@click.option("--total", type=click.IntRange(1), required=True, help="How many there are to be in all.")
@_dry_run_option
@json_option
@with_admin
def add_partitions(admin: Admin, *, name: str, total: int, dry_run: bool, as_json: bool) -> None:
    """Give a topic more partitions, and wait until they can be written to through any broker.

    Records stay where they are, and the number cannot be lowered again. Keys may go to other partitions from then on.

    \b
    Examples:
      ottla topics add-partitions clicks --total 12
      ottla topics add-partitions clicks --total 12 --dry-run
    """
    from ottla.admin import Apply

    [topic] = admin.describe_topics(name)
    before = len(topic.partitions)
    if total <= before:
        few = "it can only grow" if total < before else "there is nothing to add"
        raise Misuse(f"topic {name} has {before} partition{'s' if before != 1 else ''}, --total {total}: {few}")
    admin.add_partitions(name, total, apply=Apply.CHECK if dry_run else Apply.NOW)
    if as_json:
        click.echo(json_text({"name": name, "before": before, "after": total, "added": not dry_run}))
    else:
        click.echo(f"{name} {'would have' if dry_run else 'has'} {total} partitions, {before} before")


@topics.command()
@click.argument("names", nargs=-1, required=True)
@yes_option
@dry_run_option
@with_admin
def delete(admin: Admin, *, names: tuple[str, ...], yes: bool, dry_run: bool) -> None:
    """Delete topics with all their records, and wait until no broker knows them. Asks first, unless --yes is given.

    \b
    Examples:
      ottla topics delete clicks users
      ottla topics delete clicks --dry-run
      ottla topics delete clicks --yes
    """
    from ottla.model import TopicPartition

    found = admin.describe_topics(names)
    ranges = admin.visible_log_ranges(TopicPartition(one.name, part.index) for one in found for part in one.partitions)
    records = Counter({one.name: 0 for one in found})
    for at, log in ranges.items():
        records[at.topic] += len(log)
    told = ", ".join(f"{printable(name)} (about {count:,} records)" for name, count in records.items())
    if dry_run:
        click.echo(f"would delete {told}")
        return
    confirm(f"this deletes {told}", yes=yes)
    admin.delete_topics(names)
    click.echo(f"deleted {printable(', '.join(names))}")


def _views(
    admin: Admin, found: Collection[TopicDescription], *, settings: Mapping[str, Settings] | None = None
) -> list[TopicView]:
    """Everything about topics that can be told at the moment."""
    from ottla.cli.views.topics import TopicView
    from ottla.model import TopicPartition

    alive = frozenset(admin.cluster.known.brokers)
    ranges = admin.visible_log_ranges(
        TopicPartition(topic.name, partition.index) for topic in found for partition in topic.partitions
    )
    sizes = admin.replica_sizes([topic.name for topic in found])
    return [
        TopicView(topic, ranges, sizes, alive, None if settings is None else settings.get(topic.name))
        for topic in found
    ]


def _visible_settings(admin: Admin, names: Collection[str]) -> dict[str, Settings] | None:
    from ottla.errors import ErrorCode

    try:
        return admin.settings(names)
    except BrokerError as exc:
        if exc.code is not ErrorCode.topic_authorization_failed:
            raise
        click.echo("the settings are not shown: the user has no right to describe them", err=True)
        return None


def _all_changes(changes: Changes, unset: tuple[str, ...]) -> dict[str, str | None]:
    for key in unset:
        if key in changes:
            raise Misuse(f"{key} is both set and unset")
    if not changes and not unset:
        raise Misuse("nothing to alter: give --retention, --setting KEY=VALUE, --unset KEY or another setting")
    return {**changes, **dict.fromkeys(unset)}


def _foreseen(admin: Admin, before: Settings, changes: Changes) -> dict[str, str | None]:
    """What the settings will be. Where the broker does not tell what a topic inherits, a new topic would have it."""
    from ottla.admin import NewTopic

    unset = [key for key, value in changes.items() if value is None]
    inherited = {key: before[key].inherited for key in unset if key in before}
    if None in inherited.values():
        fresh = admin.check_topic(NewTopic(name=f"ottla-check-{uuid.uuid4().hex}"))
        inherited = {key: value or _value(fresh, key) for key, value in inherited.items()}
    return {key: inherited.get(key) if value is None else value for key, value in changes.items()}


def _values(settings: Mapping[str, Setting], names: Collection[str]) -> dict[str, str | None]:
    return {key: _value(settings, key) for key in names}


def _value(settings: Mapping[str, Setting], key: str) -> str | None:
    return settings[key].value if key in settings else None
