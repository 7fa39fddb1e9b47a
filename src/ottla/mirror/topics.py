"""The topics of a link: which are mirrored, what they are called at the target, and how they follow the source.

The topics of both clusters come in as described by their brokers. Out goes a `TopicPlan` for each mirrored topic: what
has to be created or changed at the target. `apply` does it. Planning is pure.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ottla.admin import Admin
from ottla.admin.settings import Setting, SettingSource
from ottla.admin.topics import NewTopic, TopicDescription, is_topic_name
from ottla.errors import BrokerError, ConfigError, ErrorCode, InputError, OttlaError

_TIME_LIMITS = ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms")
"""Which timestamps a topic takes, in brokers since 3.6: what the source took, the target must take."""
_FOLLOWED = (
    *("cleanup.policy", "retention.ms", "retention.bytes", "max.message.bytes", "delete.retention.ms"),
    *("min.compaction.lag.ms", "max.compaction.lag.ms", *_TIME_LIMITS),
)
"""Settings of the source that also make sense for a copy."""
_LINK_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")


def check_link_name(name: object) -> str:
    """Return the name of a link. Raises `ConfigError` unless it fits into keys and transactional ids."""
    if not isinstance(name, str) or not _LINK_NAME.fullmatch(name):
        raise ConfigError(
            f"the name of a link is {name!r:.120}; 1 to 100 letters, digits, '.', '_' and '-' are accepted"
        )
    return name


@dataclass(frozen=True, slots=True)
class Rename:
    """How topics are called at the target: `{topic}` keeps the name, `{source}.{topic}` puts the link's name first."""

    rule: str = "{topic}"

    def __post_init__(self) -> None:
        if "{topic}" not in self.rule or self.apply("t", link="s") is None:
            raise ConfigError(
                f"the rename rule is {self.rule!r}; accepted are '{{topic}}', '{{source}}.{{topic}}' and other texts"
                " with {topic} that make a topic name"
            )

    def apply(self, topic: str, *, link: str) -> str | None:
        """Return the name at the target, or None if it is not a topic name."""
        name = self.rule.replace("{source}", link).replace("{topic}", topic)
        return name if is_topic_name(name) else None

    def refusal(self, topic: str) -> InputError:
        """Return the error of a topic whose name at the target would be none."""
        return InputError(
            f"topic {topic} cannot be mirrored: {self.rule!r} makes no topic name of it; a name has up to 249 letters,"
            " digits, '.', '_' and '-'"
        )

    def is_result(self, topic: str, *, link: str) -> bool:
        """Whether a topic's name looks like the result of this rule, unless the rule keeps names."""
        before, _, after = self.rule.replace("{source}", link).partition("{topic}")
        return bool(before or after) and topic.startswith(before) and topic.endswith(after)


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """One mirrored topic: what its target is, and what has to change there."""

    source: str
    target: str
    partitions: int
    """The partitions of the source."""
    target_partitions: int | None
    """Those of the target now; None if it does not exist."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings to create the target with, or to change."""

    @property
    def action(self) -> str:
        """What `apply` does: `create`, `grow`, `alter`, or nothing."""
        if self.target_partitions is None:
            return "create"
        if self.target_partitions < self.partitions:
            return "grow"
        return "alter" if self.settings else ""


@dataclass(frozen=True, slots=True)
class Refused:
    """A topic that cannot be mirrored, or not as it should be, and why."""

    source: str
    target: str
    """Its name at the target; empty if the rule makes no topic name of the source's."""
    error: OttlaError
    partitions: int = 0
    """How many of its partitions can be mirrored nevertheless."""

    @property
    def reason(self) -> str:
        """What happened, and what that means for the topic."""
        if self.partitions:
            return f"{self.error}; what the target has of the topic is mirrored as it is"
        return str(self.error)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "topic": self.source,
            "target_topic": self.target or None,
            "partitions": self.partitions,
            "error": self.reason,
        }


MIRRORMAKER = ("heartbeats", "mm2-*.internal", "*.checkpoints.internal")
"""MirrorMaker's own topics: patterns do not match them, only their names do."""


def is_pattern(text: str) -> bool:
    """Whether a text is a pattern, and not a name."""
    return any(sign in text for sign in "*?[")


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name matches one of the patterns."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def left_out(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """Return MirrorMaker's own topics that match a pattern and are not mirrored."""
    globs = [pattern for pattern in patterns if is_pattern(pattern)]
    return [name for name in names if matches(name, MIRRORMAKER) and matches(name, globs) and name not in patterns]


def select(
    names: Iterable[str], patterns: Sequence[str], *, excluded: Collection[str] = (), exclude: Sequence[str] = ()
) -> list[str]:
    """Return the topics that match a name or a pattern with `*` and `?`.

    Left out are internal ones, those of MirrorMaker, `excluded` names, and what matches one of the patterns `exclude`.
    Raises `InputError` if a plain name does not exist.
    """
    known = {name for name in names if not name.startswith("__") and name not in excluded}
    chosen: set[str] = set()
    for pattern in patterns:
        if is_pattern(pattern):
            others = (name for name in known if not matches(name, (*MIRRORMAKER, *exclude)))
            chosen.update(name for name in others if fnmatch.fnmatchcase(name, pattern))
        elif pattern in known:
            chosen.add(pattern)
        else:
            raise InputError(f"there is no topic {pattern!r:.260} at the source")
    return sorted(chosen)


def nothing_matches(patterns: Sequence[str]) -> str:
    """Return the note on patterns that no topic of the source matches."""
    text = f"no topic at the source matches {', '.join(patterns)}"
    # MirrorMaker's patterns are regular expressions.
    is_expression = any(".*" in pattern for pattern in patterns)
    return f"{text}; '*' alone stands for any text, '.' for itself" if is_expression else text


def plan(
    source: TopicDescription,
    target: TopicDescription | None,
    *,
    name: str,
    source_settings: Mapping[str, Setting],
    target_settings: Mapping[str, Setting] | None,
) -> TopicPlan:
    """Return what has to be done so that the target can take the copy of a topic."""
    wanted = {
        setting: value.value
        for setting in _FOLLOWED
        if (value := source_settings.get(setting)) is not None
        and value.value is not None
        and value.source is SettingSource.TOPIC
    }
    limit = source_settings.get("max.message.bytes")
    if target_settings is None:
        set_by_brokers = {
            name: value.value
            for name in _TIME_LIMITS
            if (value := source_settings.get(name)) is not None
            and value.value is not None
            and value.source in (SettingSource.BROKER, SettingSource.ALL_BROKERS, SettingSource.FILE)
        }
        changes = {"compression.type": "producer", **set_by_brokers, **wanted}
        if limit is not None and limit.value is not None:
            changes["max.message.bytes"] = limit.value
    else:
        changes = {
            setting: value
            for setting, value in wanted.items()
            if (setting in target_settings and not target_settings[setting].means(value))
            or (setting not in target_settings and setting not in _TIME_LIMITS)  # its brokers are too old for them
        }
    existing = None if target is None else len(target.partitions)
    return TopicPlan(source.name, name, len(source.partitions), existing, changes)


def look(
    source: Admin,
    target: Admin,
    patterns: Sequence[str],
    rename: Rename,
    *,
    link: str,
    excluded: Collection[str],
    exclude: Sequence[str] = (),
) -> tuple[list[TopicPlan], list[Refused]]:
    """Compare the topics of both clusters. Returns a plan for each mirrored topic, and those whose new name is none.

    Raises `InputError` if a named topic does not exist.
    """
    names = [
        name
        for name in select(source.topic_names(), patterns, excluded=excluded, exclude=exclude)
        if name in patterns or not rename.is_result(name, link=link)
    ]
    renamed = {name: rename.apply(name, link=link) for name in names}
    new_names = {name: new_name for name, new_name in renamed.items() if new_name is not None}
    refused = [Refused(name, "", rename.refusal(name)) for name, new_name in renamed.items() if new_name is None]
    names = list(new_names)
    if not names:
        return [], refused
    described = {topic.name: topic for topic in source.describe_topics(names)}
    source_settings = source.settings(names)
    existing = set(target.topic_names())
    known = [new_name for new_name in new_names.values() if new_name in existing]
    targets = {topic.name: topic for topic in target.describe_topics(known)} if known else {}
    target_settings = target.settings(known) if known else {}
    plans = [
        plan(
            described[name],
            targets.get(new_names[name]),
            name=new_names[name],
            source_settings=source_settings[name],
            target_settings=target_settings.get(new_names[name]),
        )
        for name in names
    ]
    return plans, refused


def apply(target: Admin, plans: Iterable[TopicPlan], *, replicas: int = -1) -> list[Refused]:
    """Create topics, add partitions and change settings, as planned. Returns the topics that a broker refuses.

    Raises `BrokerError` if trying again may help.
    """
    refused = []
    for planned in plans:
        there = planned.target_partitions or 0
        try:
            if planned.target_partitions is None:
                _create(target, planned, replicas)
                continue
            if planned.target_partitions < planned.partitions:
                target.add_partitions(planned.target, planned.partitions)
                there = planned.partitions
            if planned.settings:
                target.alter_settings(planned.target, planned.settings)
        except BrokerError as error:
            if error.retriable:
                raise
            refused.append(Refused(planned.source, planned.target, error, there))
    return refused


def _create(target: Admin, planned: TopicPlan, replicas: int) -> None:
    try:
        creating(planned, replicas, lambda new: target.create_topics([new]))
    except BrokerError as error:
        if error.code is not ErrorCode.topic_already_exists:
            raise


def creating(planned: TopicPlan, replicas: int, do: Callable[[NewTopic], object]) -> None:
    """Have the target create a topic, or check it: without limits of timestamps if its brokers are too old for them."""

    def new(settings: Mapping[str, str]) -> NewTopic:
        return NewTopic(name=planned.target, partitions=planned.partitions, replicas=replicas, settings=settings)

    try:
        do(new(planned.settings))
    except BrokerError as error:
        older = {name: value for name, value in planned.settings.items() if name not in _TIME_LIMITS}
        if error.code is not ErrorCode.invalid_config or len(older) == len(planned.settings):
            raise
        do(new(older))
