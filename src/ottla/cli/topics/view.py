"""How topics are shown: as tables for people, and as JSON with everything for programs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ottla.admin import ReplicaSizes, Setting, SettingSource, TopicDescription
from ottla.cli.output.styles import Style, Styled, faint, paint
from ottla.cli.output.tables import table
from ottla.cli.topics.settings import show_meaning, show_setting, show_value
from ottla.cli.values.numbers import thousands
from ottla.cli.values.quantities import show_size
from ottla.model import OffsetRange, TopicPartition
from ottla.net.metadata import Partition
from ottla.text import printable

_SOURCES = {
    SettingSource.TOPIC: "this topic",
    SettingSource.BROKER: "a broker",
    SettingSource.ALL_BROKERS: "the brokers",
    SettingSource.FILE: "the brokers' files",
    SettingSource.DEFAULT: "Kafka's default",
    SettingSource.UNKNOWN: "unknown",
}


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic with everything that is shown. Logs whose end is unknown are not in `ranges`."""

    topic: TopicDescription
    ranges: Mapping[TopicPartition, OffsetRange]
    sizes: ReplicaSizes
    alive: frozenset[int]
    """The ids of the brokers that are up."""
    settings: Mapping[str, Setting] | None = None
    """None if they were not fetched, or the user may not see them."""

    def log(self, partition: Partition) -> OffsetRange | None:
        """Return the offsets of a partition, None if they are unknown."""
        return self.ranges.get(TopicPartition(self.topic.name, partition.index))

    def size(self, partition: Partition) -> int | None:
        """Return the bytes of one replica, None if they are unknown."""
        return self.sizes.largest(TopicPartition(self.topic.name, partition.index))

    @property
    def records(self) -> int:
        """An estimate: offsets between start and end of all logs."""
        logs = (self.log(partition) for partition in self.topic.partitions)
        return sum(len(log) for log in logs if log is not None)

    def faults(self, partition: Partition) -> list[str]:
        """Return the problems of a partition."""
        faults = []
        if partition.leader not in self.alive:
            faults.append("no leader")
        else:
            faults += self._faults_of_leader(partition)
        missing = [node for node in partition.replicas if node not in partition.isr]
        if missing:
            faults.append(f"under-replicated: {_ids(missing)} not in sync")
        return faults

    def _faults_of_leader(self, partition: Partition) -> Iterator[str]:
        if partition.replicas and partition.leader != partition.replicas[0]:
            yield f"not led by the preferred {partition.replicas[0]}"
        if self.log(partition) is None:
            yield "the end of the log is unknown at the moment"

    @property
    def size_bytes(self) -> int:
        """Bytes on all brokers that returned sizes."""
        return sum(self.sizes.together(TopicPartition(self.topic.name, part.index)) for part in self.topic.partitions)

    @property
    def away(self) -> dict[int, str]:
        """Brokers with replicas that did not return sizes, and why."""
        holders = {node for partition in self.topic.partitions for node in partition.replicas}
        return {node: reason for node, reason in sorted(self.sizes.away.items()) if node in holders}

    @property
    def under_replicated(self) -> int:
        """Partitions with replicas out of sync."""
        return sum(len(partition.isr) < len(partition.replicas) for partition in self.topic.partitions)

    @property
    def leaderless(self) -> int:
        """Partitions that cannot be read or written."""
        return sum(partition.leader not in self.alive for partition in self.topic.partitions)


def topic_dict(view: TopicView) -> dict[str, Any]:
    """Return a topic for JSON."""
    topic = view.topic
    return {
        "name": topic.name,
        "id": str(topic.id) if topic.id else None,
        "internal": topic.internal,
        "replicas": topic.replicas,
        "records_estimate": view.records,
        "size_bytes": view.size_bytes,
        "under_replicated": view.under_replicated,
        "leaderless": view.leaderless,
        "brokers_away": {str(node): reason for node, reason in view.away.items()},
        "settings": None if view.settings is None else [setting_dict(setting) for setting in view.settings.values()],
        "partitions": [_partition_dict(view, partition) for partition in topic.partitions],
    }


def setting_dict(setting: Setting) -> dict[str, Any]:
    """Return a setting for JSON."""
    return {
        "name": setting.name,
        "value": setting.value,
        "source": setting.source.name.lower(),
        "is_default": setting.is_default,
        "type": setting.type.name.lower(),
        "sensitive": setting.sensitive,
        "read_only": setting.read_only,
        "inherited": setting.inherited,
        "default": setting.default,
        "documentation": setting.documentation,
    }


def _partition_dict(view: TopicView, partition: Partition) -> dict[str, Any]:
    key = TopicPartition(view.topic.name, partition.index)
    log = view.log(partition)
    return {
        "partition": partition.index,
        "leader": partition.leader if partition.leader in view.alive else None,
        "leader_epoch": partition.leader_epoch,
        "replicas": list(partition.replicas),
        "in_sync": list(partition.isr),
        "offline": list(partition.offline),
        "faults": view.faults(partition),
        "start": None if log is None else log.start,
        "stop": None if log is None else log.stop,
        "size_bytes": view.size(partition),
        "copies": [
            {
                "broker": copy.broker,
                "size_bytes": copy.size_bytes,
                "directory": copy.directory,
                "moving": copy.moving,
                "move_lag": copy.move_lag,
            }
            for copy in view.sizes.copies.get(key, ())
        ],
    }


def topic_text(view: TopicView, *, width: int | None) -> str:
    """Return a topic for people."""
    parts = [headline(view, is_styled=width is not None)]
    if view.settings is not None:
        parts.append(settings_text(view.settings, width) or "  all settings have their defaults")
    parts.append(_partitions_table(view, width))
    return "\n".join(parts)


def headline(view: TopicView, *, is_styled: bool = False) -> str:
    """Return a summary in a line or two."""
    topic = view.topic
    counted = f"{len(topic.partitions)} partition{'s' if len(topic.partitions) != 1 else ''}"
    copies = f"{topic.replicas} replica{'s' if topic.replicas != 1 else ''}"
    size = show_size(view.size_bytes)
    internal = ", internal" if topic.internal else ""
    holds = f"about {view.records:,} records, {size} on disk"
    name = paint(printable(topic.name), Style.STRONG, on=is_styled)
    lines = [f"{name}: {counted}, {copies}, {holds}{internal}"]
    if is_styled:  # a line that fits a terminal
        lines.append(f"  id {topic.id}")
    else:
        lines[0] += f", id {topic.id}"
    if view.settings:
        lines.append(f"  {printable(', '.join(_cleanup(view.settings)))}")
    for node, reason in view.away.items():
        text = f"broker {node} did not return sizes: {printable(reason)}"
        lines.append(f"  {paint(text, Style.WARNING, on=is_styled)}")
    return "\n".join(lines)


def _cleanup(settings: Mapping[str, Setting]) -> Iterator[str]:
    """Yield how records are cleaned up, even if that is the default: it is looked for most often."""
    labels = {"cleanup.policy": "cleanup", "retention.ms": "retention", "retention.bytes": "retention by size"}
    for name, label in labels.items():
        if name in settings:
            value = settings[name].value or ""
            yield f"{label}: {show_meaning(name, value) or value}"


def overview(views: Sequence[TopicView], *, width: int | None) -> str:
    """Return a table of topics."""
    rows = []
    for view in views:
        cells = [
            view.topic.name,
            thousands(len(view.topic.partitions)),
            str(view.topic.replicas),
            thousands(view.records),
            show_size(view.size_bytes),
            _state(view),
        ]
        is_quiet = not view.records and not view.leaderless and not view.under_replicated
        rows.append(faint(cells) if is_quiet else cells)
    return table(("topic", "partitions", "replicas", "records", "on disk", "state"), rows, width=width)


def changes_table(rows: Sequence[tuple[str, str | None, str | None]], *, width: int | None) -> str:
    """Return a table of settings before and after."""
    shown = [(name, _side(name, before), _side(name, after)) for name, before, after in rows]
    return table(("setting", "before", "after"), shown, width=width, indent=2)


def _side(name: str, value: str | None) -> str:
    return "(the broker default)" if value is None else show_value(name, value)


def _state(view: TopicView) -> str:
    problems = []
    if view.leaderless:
        problems.append(f"{view.leaderless} without leader")
    if view.under_replicated:
        problems.append(f"{view.under_replicated} under-replicated")
    if not problems:
        return Styled("ok", Style.GOOD)
    return Styled(", ".join(problems), Style.BAD if view.leaderless else Style.WARNING)


def settings_text(settings: Mapping[str, Setting], width: int | None) -> str:
    """Return what differs from the default as a table, and what was set to the default as a line."""
    given = [setting for setting in settings.values() if not setting.is_default]
    differing = [
        setting
        for setting in given
        if setting.value is None or {setting.value} != {setting.default, _inherited(setting)}
    ]
    same = ", ".join(f"{setting.name}={setting.value}" for setting in given if setting not in differing)
    rows = [
        (
            setting.name,
            show_setting(setting),
            _default(setting),
            _SOURCES[setting.source],
        )
        for setting in differing
    ]
    lines = [table(("setting", "value", "default", "set by"), rows, width=width, indent=2)] if rows else []
    if same:
        lines.append(printable(f"  set to what is the default anyway: {same}"))
    return "\n".join(lines)


def _inherited(setting: Setting) -> str | None:
    """Return what would apply without the topic's own value, as far as it is known."""
    return setting.default if setting.inherited is None else setting.inherited


def _default(setting: Setting) -> str:
    return "" if setting.default is None else show_value(setting.name, setting.default)


def _partitions_table(view: TopicView, width: int | None) -> str:
    rows = [_partition_row(view, partition) for partition in view.topic.partitions]
    headings = ("partition", "leader", "replicas", "in sync", "start", "stop", "records", "size", "state")
    return table(headings, rows, width=width, indent=2)


def _partition_row(view: TopicView, partition: Partition) -> list[str]:
    log = view.log(partition)
    size = view.size(partition)
    faults = view.faults(partition)
    has_leader, is_whole = partition.leader in view.alive, len(partition.isr) >= len(partition.replicas)
    cells = [
        str(partition.index),
        str(partition.leader) if has_leader else "-",
        _ids(partition.replicas),
        _ids(partition.isr) or "none",
        thousands(None if log is None else log.start),
        thousands(None if log is None else log.stop),
        thousands(None if log is None else len(log)),
        "-" if size is None else show_size(size),
        "ok",
    ]
    if not faults:
        return faint(cells) if log is not None and not len(log) else [*cells[:-1], Styled("ok", Style.GOOD)]
    cells[-1] = Styled("; ".join(faults), Style.BAD if not has_leader else Style.WARNING)
    if not is_whole:
        cells[3] = Styled(cells[3], Style.WARNING)
    return cells


def _ids(ids: Sequence[int]) -> str:
    return ",".join(map(str, ids))
