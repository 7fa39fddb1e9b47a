"""`ottla topics`: list, describe, create, alter and delete topics."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import click

from ottla.cli.completion.values import complete_topic_settings, complete_topics
from ottla.cli.errors import UsageError
from ottla.cli.options.common import check_topic, json_option, topics_argument
from ottla.cli.options.confirmation import confirm, dry_run_option, yes_option
from ottla.cli.options.connection import with_admin
from ottla.cli.options.internal import internal_option, is_internal_topic, say_hidden
from ottla.cli.options.types import Integer, parsed
from ottla.cli.output.json_text import json_text
from ottla.cli.output.tables import terminal_width
from ottla.cli.topics import declared
from ottla.cli.topics.replicas import replicas
from ottla.cli.topics.settings import topic_settings_options
from ottla.errors import BrokerError
from ottla.text import printable

if TYPE_CHECKING:
    from ottla.admin import Admin, Setting, TopicDescription
    from ottla.admin.settings import Changes, Settings
    from ottla.cli.topics.view import TopicView

_name_argument = click.argument("name", metavar="TOPIC", callback=parsed(check_topic), shell_complete=complete_topics)


@click.group()
def topics() -> None:
    """List, describe, create, alter and delete topics, one by one or as a file declares them.

    \b
    Examples:
      ottla topics list --long
      ottla topics create clicks --partitions 6 --replicas 3 --retention 4d
      ottla topics describe clicks --bootstrap localhost:9092
      ottla topics alter clicks --retention 12h --retention-size 50GB --dry-run
      ottla topics add-partitions clicks --total 12
      ottla topics replicas clicks 3
      ottla topics delete clicks
      ottla topics export --output topics.toml
      ottla topics apply topics.toml --dry-run
    """


for _command in (declared.diff, declared.apply, declared.export):
    topics.add_command(_command)
topics.add_command(replicas)


@topics.command("list")
@click.option("--long", "-l", "is_long", is_flag=True, help="Also show partitions, replicas, records, size and state.")
@internal_option
@json_option
@with_admin
def list_topics(admin: Admin, *, is_long: bool, internal: bool, as_json: bool) -> None:
    """List all topics except those of Kafka and Ottla themselves.

    \b
    Examples:
      ottla topics list
      ottla topics list --long
      ottla topics list --long --json
    """
    from ottla.cli.topics.view import overview, topic_dict

    existing = admin.describe_topics()
    listed = [topic for topic in existing if internal or not (topic.internal or is_internal_topic(topic.name))]
    if as_json:
        names = [topic.name for topic in listed]
        click.echo(json_text([topic_dict(view) for view in _views(admin, listed)] if is_long else names))
    elif not listed:
        click.echo("no topics", err=True)
    elif is_long:
        click.echo(overview(_views(admin, listed), width=terminal_width()))
    else:
        click.echo("\n".join(printable(topic.name) for topic in listed))
    say_hidden(sum(not topic.internal for topic in existing) - sum(not topic.internal for topic in listed), "topic")


@topics.command()
@topics_argument
@json_option
@with_admin
def describe(admin: Admin, *, topics: tuple[str, ...], as_json: bool) -> None:
    """Show settings, leaders, replicas, offsets and sizes.

    The number of records is an estimate: the distance between the first and last offset, which compaction and
    transactions leave gaps in. The last column shows problems of a partition: no leader, not the preferred leader,
    replicas out of sync. Only settings that are not the default are shown;
    --json has everything.

    \b
    Examples:
      ottla topics describe clicks
      ottla topics describe clicks users --json
    """
    from ottla.cli.topics.view import topic_dict, topic_text

    described = admin.describe_topics(topics)
    views = _views(admin, described, settings=_visible_settings(admin, topics))
    if as_json:
        click.echo(json_text([topic_dict(view) for view in views]))
    else:
        click.echo("\n\n".join(topic_text(view, width=terminal_width()) for view in views))


@topics.command()
@_name_argument
@click.option("--partitions", type=Integer(1), default=1, show_default=True, help="Number of partitions.")
@click.option("--replicas", type=Integer(1), help="Replicas of each partition.  [default: that of the brokers]")
@topic_settings_options
@dry_run_option
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
    """Create a topic.

    Waits until it can be written to through any broker.

    \b
    Examples:
      ottla topics create clicks --partitions 6 --replicas 3 --retention 4d --retention-size 50GB
      ottla topics create users --cleanup compact --max-message-size 2MB
      ottla topics create ticks --setting segment.ms=3600000 --dry-run
    """
    from ottla.admin import NewTopic
    from ottla.admin.settings import refuse_unknown
    from ottla.cli.topics.view import setting_dict

    given = {key: value for key, value in changes.items() if value is not None}
    new = NewTopic(name=name, partitions=partitions, replicas=replicas or -1, settings=given)
    if given:
        # Without settings first: only then do the brokers return all that exist.
        plain = NewTopic(name=name, partitions=partitions, replicas=replicas or -1)
        refuse_unknown(given, admin.check_topic(plain))
    settings = admin.check_topic(new)
    if not dry_run:
        admin.create_topics([new])
    if as_json:
        shown = [setting_dict(setting) for setting in settings.values()]
        click.echo(json_text({"name": name, "partitions": partitions, "created": not dry_run, "settings": shown}))
    else:
        verb = "would create" if dry_run else "created"
        click.echo(f"{verb} {name} with {partitions} partition{'s' if partitions > 1 else ''}")


@topics.command()
@_name_argument
@topic_settings_options
@click.option(
    "--unset",
    multiple=True,
    metavar="KEY",
    shell_complete=complete_topic_settings,
    help="Remove this setting from the topic. Repeatable.",
)
@yes_option
@dry_run_option
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
    """Change settings of a topic, and show them before and after. Other settings stay.

    Asks for confirmation if the change may delete records: a shorter retention, another cleanup policy.

    \b
    Examples:
      ottla topics alter clicks --retention 12h --retention-size 50GB
      ottla topics alter clicks --unset retention.ms --dry-run
      ottla topics alter users --cleanup compact,delete --setting min.insync.replicas=2
    """
    from ottla.admin import Apply
    from ottla.admin.settings import keeps_less, refuse_unknown
    from ottla.cli.topics.view import changes_table

    requested = _all_changes(changes, unset)
    admin.describe_topics(name)  # fails at once if the topic does not exist
    before = admin.settings(name)[name]
    refuse_unknown(requested, before)
    admin.alter_settings(name, requested, apply=Apply.CHECK)
    after = _predicted(admin, before, requested)
    if not dry_run:
        losing = [key for key, value in after.items() if keeps_less(key, _value(before, key), value)]
        if losing:
            confirm(f"{', '.join(losing)} of topic {printable(name)}: this may delete records", yes=yes)
        admin.alter_settings(name, requested)
        after = _values(admin.settings(name)[name], requested)
    rows = [(key, _value(before, key), after[key]) for key in requested]
    if as_json:
        shown = [{"setting": key, "before": old, "after": new} for key, old, new in rows]
        click.echo(json_text({"name": name, "altered": not dry_run, "changes": shown}))
    else:
        click.echo(f"{name} {'would be altered' if dry_run else 'is altered'}:")
        click.echo(changes_table(rows, width=terminal_width()))


@topics.command("add-partitions")
@_name_argument
@click.option("--total", type=Integer(1), required=True, help="Number of partitions afterwards.")
@dry_run_option
@json_option
@with_admin
def add_partitions(admin: Admin, *, name: str, total: int, dry_run: bool, as_json: bool) -> None:
    """Add partitions to a topic.

    Waits until they can be written to through any broker. Records stay where they are, but keys may go to other
    partitions from then on. The number cannot be reduced again.

    \b
    Examples:
      ottla topics add-partitions clicks --total 12
      ottla topics add-partitions clicks --total 12 --dry-run
    """
    from ottla.admin import Apply

    [topic] = admin.describe_topics(name)
    before = len(topic.partitions)
    if total <= before:
        reason = "partitions can only be added" if total < before else "nothing to add"
        raise UsageError(f"topic {name} has {before} partition{'s' if before != 1 else ''}, --total {total}: {reason}")
    admin.add_partitions(name, total, apply=Apply.CHECK if dry_run else Apply.NOW)
    if as_json:
        click.echo(json_text({"name": name, "before": before, "after": total, "added": not dry_run}))
    else:
        click.echo(f"{name} {'would have' if dry_run else 'has'} {total} partitions, {before} before")


@topics.command()
@topics_argument
@yes_option
@dry_run_option
@json_option
@with_admin
def delete(admin: Admin, *, topics: tuple[str, ...], yes: bool, dry_run: bool, as_json: bool) -> None:
    """Delete topics with all their records. Asks for confirmation.

    Waits until no broker knows them.

    \b
    Examples:
      ottla topics delete clicks users
      ottla topics delete clicks --dry-run
      ottla topics delete clicks --yes
    """
    from ottla.model import TopicPartition

    described = admin.describe_topics(topics)
    logs = admin.visible_log_ranges(
        TopicPartition(topic.name, partition.index) for topic in described for partition in topic.partitions
    )
    records = Counter({topic.name: 0 for topic in described})
    for tp, log in logs.items():
        records[tp.topic] += len(log)
    summary = ", ".join(f"{printable(name)} (about {count:,} records)" for name, count in records.items())
    if not dry_run:
        confirm(f"this deletes {summary}", yes=yes)
        admin.delete_topics(topics)
    if as_json:
        shown = [{"name": name, "records_estimate": count} for name, count in records.items()]
        click.echo(json_text({"deleted": not dry_run, "topics": shown}))
    else:
        click.echo(f"would delete {summary}" if dry_run else f"deleted {printable(', '.join(topics))}")


def _views(
    admin: Admin, topics: Collection[TopicDescription], *, settings: Mapping[str, Settings] | None = None
) -> list[TopicView]:
    """Return everything that is known about topics at the moment."""
    from ottla.admin.sizes import find_sizes
    from ottla.cli.topics.view import TopicView
    from ottla.model import TopicPartition

    alive = frozenset(admin.cluster.known.brokers)
    ranges = admin.visible_log_ranges(
        TopicPartition(topic.name, partition.index) for topic in topics for partition in topic.partitions
    )
    sizes = find_sizes(admin.cluster, topics, deadline=admin.cluster.deadline())
    return [
        TopicView(topic, ranges, sizes, alive, None if settings is None else settings.get(topic.name))
        for topic in topics
    ]


def _visible_settings(admin: Admin, names: Collection[str]) -> dict[str, Settings] | None:
    from ottla.errors import ErrorCode

    try:
        return admin.visible_settings(names)
    except BrokerError as error:
        if error.code is not ErrorCode.topic_authorization_failed:
            raise
        click.echo("settings are not shown: the user is not allowed to describe them", err=True)
        return None


def _all_changes(changes: Changes, unset: tuple[str, ...]) -> dict[str, str | None]:
    for key in unset:
        if key in changes:
            raise UsageError(f"{key} is both set and unset")
    if not changes and not unset:
        raise UsageError("nothing to alter: pass --retention, --setting KEY=VALUE, --unset KEY or another setting")
    return {**changes, **dict.fromkeys(unset)}


def _predicted(admin: Admin, before: Settings, changes: Changes) -> dict[str, str | None]:
    """Return the settings after the change. An inherited value that is unknown is taken from a new topic."""
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
