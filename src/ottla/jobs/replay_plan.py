"""Plans a replay: its name, whether the target can take it, and which source partitions have records left.

An open source, a selection and a target come in. A `Plan` goes out, or an error that says what is wrong. Planning
writes no record; it only creates the folder for notes.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ottla.admin import Admin
from ottla.errors import ConfigError, InputError
from ottla.jobs.replay_notes import NO_NOTES, Notes
from ottla.jobs.replay_partition import Placement, ReplayNames, ReplayPartition, Target, position
from ottla.jobs.replay_source import Selection, Source, SourcePartition, shown_time
from ottla.jobs.replay_throttle import ReplayControl
from ottla.lake.paths import require_inside
from ottla.model import Fingerprint, Isolation, OffsetRange, TopicPartition
from ottla.net.cluster import Cluster
from ottla.net.metadata import Topic

_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_DIGITS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A replay that can start."""

    source: Source
    selection: Selection
    target: Target
    names: ReplayNames
    partitions: Mapping[TopicPartition, SourcePartition]
    """All selected source partitions."""
    positions: Mapping[TopicPartition, int]
    """Their positions when the replay was planned; 0 for those that never started."""
    notes: Notes
    cautions: tuple[str, ...]
    """Properties of the target that the caller should know about."""
    is_into_source: bool
    """Whether the target is one of the topics whose records are replayed, and so gets them twice."""

    @property
    def name(self) -> str:
        """The name of the replay."""
        return self.names.name

    @property
    def ranges(self) -> list[OffsetRange]:
        """The ranges of the source partitions that have records left."""
        spans = [partition.range for partition in self.partitions.values()]
        return [span for span in spans if self.positions[span.topic_partition] < span.stop]

    def job(self, control: ReplayControl) -> ReplayPartition:
        """Return the job that an engine runs over the ranges."""
        return ReplayPartition(
            target=self.target,
            names=self.names,
            partitions=self.partitions,
            selection=self.selection,
            notes=self.notes,
            control=control,
        )

    def share_done(self, positions: Mapping[TopicPartition, int]) -> float:
        """Return how much of the replay is done at these positions: 0.0 to 1.0, by offsets."""
        passed = total = 0
        for tp, partition in self.partitions.items():
            span = partition.range
            reached = max(span.start, self.positions[tp], positions.get(tp, 0))
            passed += min(reached, span.stop) - span.start
            total += len(span)
        return passed / total if total else 1.0

    def expected(self) -> dict[TopicPartition, Fingerprint] | None:
        """Return the fingerprint of each source partition by the archive's receipts.

        None if the archive has no receipts, or if only some of the records are replayed.
        """
        if not self.selection.is_everything or not self.source.receipts:
            return None
        totals: dict[TopicPartition, Fingerprint] = {}
        for receipt in self.source.receipts:
            tp = receipt.range.topic_partition
            totals[tp] = totals.get(tp, Fingerprint()) + receipt.fingerprint
        return {tp: totals.get(tp, Fingerprint()) for tp in self.partitions}


def plan(
    source: Source, selection: Selection, target: Target, *, name: str | None = None, since: float | None = None
) -> Plan:
    """Check everything that can be checked before the first record is written.

    `since` (a time in seconds) gives the replay a new name, so that it writes everything once more. Raises `InputError`
    if nothing is selected or the target has too few partitions, `LakeError` if the brokers forgot a position, and
    the errors of `Cluster` if the target cannot be reached.
    """
    partitions = {partition.topic_partition: partition for partition in source.selected(selection)}
    with target.access.cluster() as cluster, Admin(cluster) as admin:
        topic = cluster.topic(target.topic)
        _require_partitions(target, topic, partitions)
        names = _names(source, selection, target, topic, name=name, since=since)
        _require_same_selection(admin, names)
        notes = _notes(source, names)
        positions = _positions(cluster, target, names, partitions, notes)
        settings = admin.settings(target.topic)[target.topic]
        values = {key: str(setting.value) for key, setting in settings.items()}
    archived = {tp.topic for tp in partitions}
    unwritable = _create_folder(notes)
    return Plan(
        source=source,
        selection=selection,
        target=target,
        names=names,
        partitions=partitions,
        positions=positions,
        notes=notes,
        cautions=(*unwritable, *_cautions(target, values, list(partitions.values()), now=time.time())),
        is_into_source=str(topic.id) in {source.topic_ids.get(name) for name in archived},
    )


def checked_name(name: str) -> str:
    """Return the name of a replay. Raises `ConfigError` if it is not a valid one."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no name for a replay: use 1 to 100 of the characters a-z A-Z 0-9 . _ -")
    return name


def _names(
    source: Source, selection: Selection, target: Target, topic: Topic, *, name: str | None, since: float | None
) -> ReplayNames:
    identity = {
        "path": source.path,
        "topics": sorted(selection.topics),
        "start": None if selection.start is None else selection.start.timestamp(),
        "stop": None if selection.stop is None else selection.stop.timestamp(),
        "where": repr(selection.where),
        "target": target.topic,
        # A topic that was deleted and created again is a different target.
        "id": str(topic.id),
        "placement": target.placement.value,
    }
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:_DIGITS]
    if name is None:
        name = digest if since is None else f"{digest}-{int(since * 1000):x}"
    return ReplayNames(checked_name(name), digest)


def _require_partitions(target: Target, topic: Topic, partitions: Mapping[TopicPartition, SourcePartition]) -> None:
    if target.placement is not Placement.KEPT:
        return
    highest = max(partitions, key=lambda tp: tp.partition)
    if highest.partition >= len(topic.partitions):
        raise InputError(
            f"the archive has records of {highest}, but topic {target.topic} has {_count(len(topic.partitions))}: add"
            " partitions, or let keys decide instead of keeping partitions"
        )


def _count(partitions: int) -> str:
    return f"only {partitions} partition{'s' if partitions != 1 else ''}"


def _require_same_selection(admin: Admin, names: ReplayNames) -> None:
    for group in admin.groups.list_groups():
        if group.name.startswith(names.prefix):
            digest = group.name.removeprefix(names.prefix).partition(":")[0]
            if digest != names.digest:
                raise InputError(
                    f"a replay named {names.name} exists that selects something else, or writes elsewhere (archive,"
                    " topics, times, condition, target and partitioning belong to a replay): choose another name"
                )


def _positions(
    cluster: Cluster,
    target: Target,
    names: ReplayNames,
    partitions: Mapping[TopicPartition, SourcePartition],
    notes: Notes,
) -> dict[TopicPartition, int]:
    positions: dict[TopicPartition, int] = {}
    for tp, partition in sorted(partitions.items()):
        # Not READ_COMMITTED: a killed run may have left its transaction open, and this replay is what will abort it.
        committed = position(cluster, target, names, tp, isolation=Isolation.READ_UNCOMMITTED)
        positions[tp] = notes.checked(partition.range, committed)
    return positions


def _notes(source: Source, names: ReplayNames) -> Notes:
    if source.notes is None:
        return NO_NOTES
    return Notes(str(require_inside(Path(source.path), Path(source.notes) / f"{names.name}:{names.digest}")))


def _create_folder(notes: Notes) -> tuple[str, ...]:
    """Create the folder for notes; return a caution if that fails."""
    if notes.folder is not None:
        try:
            Path(notes.folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            return (f"cannot keep notes beside the archive ({error}): do not let the replay rest for a week",)
    return ()


def _cautions(
    target: Target, settings: Mapping[str, str], partitions: Sequence[SourcePartition], *, now: float
) -> list[str]:
    cautions = []
    if settings.get("message.timestamp.type") == "LogAppendTime":
        cautions.append(f"{target.topic} has message.timestamp.type=LogAppendTime: its brokers replace the timestamps")
    kept_seconds = float(settings.get("retention.ms", "-1")) / 1000
    oldest = min(file.first_time for partition in partitions for file in partition.files)
    if "delete" in settings.get("cleanup.policy", "") and 0 <= kept_seconds < now - oldest:
        cautions.append(
            f"{target.topic} keeps records for {kept_seconds / 86_400:.1f} days and the archive has some from"
            f" {shown_time(oldest)}: the brokers will delete them soon, unless retention.ms is raised"
        )
    return cautions
