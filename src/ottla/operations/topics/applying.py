"""Reads topics from a cluster, and applies a plan to it: first everything is checked by brokers, then it is changed.

Comes in: an `Admin`, a declaration, a plan. Goes out: `LiveTopic` values, and each change as it is done. What a plan
holds back is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from fnmatch import fnmatchcase

from ottla.admin.admin import Admin
from ottla.admin.settings import Changes, refuse_unknown
from ottla.admin.topics import BROKER_DEFAULT, Apply, NewTopic, TopicDescription
from ottla.errors import ConfigError
from ottla.operations.topics.comparing import Action, Change, LiveTopic, Plan
from ottla.operations.topics.declaration import Declaration, DeclaredTopic
from ottla.text import printable

Done = Callable[[Change], None]
SetReplicas = Callable[[str, int], None]
"""Changes the replicas of a topic; see `apply_plan`."""
_AT_ONCE = 500
_REMOTE_METADATA = "__remote_log_metadata"


def check_cluster(admin: Admin, declaration: Declaration) -> int:
    """Return the number of brokers that are up. Raises `ConfigError` if the file is for another cluster."""
    metadata = admin.cluster.metadata(deadline=admin.cluster.deadline())
    if metadata.cluster_id != declaration.cluster_id:
        raise ConfigError(
            f"the file is for cluster {printable(declaration.cluster_id)}, and this is cluster"
            f" {printable(str(metadata.cluster_id))}: nothing is compared or changed"
        )
    return len(metadata.brokers)


def live_topics(admin: Admin, patterns: Collection[str] = ()) -> list[LiveTopic]:
    """Return the topics that `admin` sees and whose names match one of the patterns with * and ? (none: all).

    Internal ones are left out.
    """
    found = [
        topic
        for topic in admin.describe_topics()
        if not is_internal(topic) and (not patterns or any(fnmatchcase(topic.name, each) for each in patterns))
    ]
    names = [topic.name for topic in found]
    settings = {}
    for start in range(0, len(names), _AT_ONCE):
        settings.update(admin.visible_settings(names[start : start + _AT_ONCE]))
    return [
        LiveTopic(topic.name, len(topic.partitions), topic.replicas, settings[topic.name], is_internal(topic))
        for topic in found
        if topic.name in settings  # not deleted meanwhile
    ]


def is_internal(topic: TopicDescription) -> bool:
    """Whether Kafka itself keeps something in a topic. Brokers do not say so of the one for tiered storage."""
    return topic.internal or topic.name == _REMOTE_METADATA


def check_plan(admin: Admin, plan: Plan) -> None:
    """Have brokers check everything that the plan would create, grow and alter. Nothing is changed.

    Raises `ConfigError` for a setting that topics do not have, and `BrokerError` for what brokers refuse.
    """
    for change in plan.to_apply:
        if change.action is Action.CREATE:
            new = _new(plan.declared[change.topic])
            if new.settings:
                # Without settings first: only then do the brokers return all that exist.
                plain = NewTopic(name=new.name, partitions=new.partitions, replicas=new.replicas)
                _known(change.topic, new.settings, admin.check_topic(plain))
            admin.check_topic(new)
        elif change.action is Action.GROW:
            admin.add_partitions(change.topic, int(change.after or 0), apply=Apply.CHECK)
    for topic, changes in _altered(plan.to_apply).items():
        _known(topic, [key for key, value in changes.items() if value is not None], admin.settings(topic)[topic])
        admin.alter_settings(topic, changes, apply=Apply.CHECK)


def apply_plan(
    admin: Admin,
    plan: Plan,
    *,
    done: Done = lambda change: None,
    set_replicas: SetReplicas | None = None,
) -> tuple[Change, ...]:
    """Check the plan, then apply it with `admin`. Returns what was changed; `done` is called after each of it.

    Changes of replicas are left, unless `set_replicas` is given to carry them out. Raises `ConfigError` if something in
    the plan is impossible, and as `check_plan` does; then nothing was changed. A later `BrokerError` leaves what is
    done already: the same plan, made again, continues there.
    """
    if plan.impossible:
        first = plan.impossible[0]
        raise ConfigError(
            f"topic {first.topic}: {first.what} {first.before or 'none'} cannot become {first.after}: {first.note}"
        )
    check_plan(admin, plan)
    applied: list[Change] = []

    def report(change: Change) -> None:
        applied.append(change)
        done(change)

    for change in plan.to_apply:
        if change.action is Action.CREATE:
            admin.create_topics([_new(plan.declared[change.topic])])
        elif change.action is Action.GROW:
            admin.add_partitions(change.topic, int(change.after or 0))
        else:
            continue
        report(change)
    for topic, changes in _altered(plan.to_apply).items():
        admin.alter_settings(topic, changes)
        for change in plan.to_apply:
            if change.topic == topic and change.action in (Action.ALTER, Action.UNSET):
                report(change)
    for change in plan.changes:
        if change.action is Action.DELETE and not change.is_held:
            admin.delete_topics(change.topic)
            report(change)
        elif change.action is Action.REPLICAS and set_replicas is not None:
            set_replicas(change.topic, int(change.after or 0))
            report(change)
    return tuple(applied)


def _altered(changes: Iterable[Change]) -> dict[str, Changes]:
    """Return the new settings of each topic; None removes one."""
    altered: dict[str, dict[str, str | None]] = {}
    for change in changes:
        if change.action in (Action.ALTER, Action.UNSET):
            value = change.after if change.action is Action.ALTER else None
            altered.setdefault(change.topic, {})[change.what] = value
    return {**altered}


def _new(declared: DeclaredTopic) -> NewTopic:
    return NewTopic(
        name=declared.name,
        partitions=declared.partitions or BROKER_DEFAULT,
        replicas=declared.replicas or BROKER_DEFAULT,
        settings=declared.settings,
    )


def _known(topic: str, names: Iterable[str], known: Collection[str]) -> None:
    try:
        refuse_unknown(names, known)
    except ConfigError as error:
        raise ConfigError(f"topic {topic}: {error}") from error
