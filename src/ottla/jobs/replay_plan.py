"""Before a replay begins: its name, whether the target can take it, which lineages have something left.

An opened source, a selection and a target come in; a `Plan` goes out, or an error that says what is wrong, and nothing
was written then but a folder for notes.
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
    """A replay that can begin."""

    source: Source
    selection: Selection
    target: Target
    title: ReplayNames
    lineages: Mapping[TopicPartition, SourcePartition]
    """All that are selected."""
    positions: Mapping[TopicPartition, int]
    """How far they are; 0 for those that were never begun."""
    notes: Notes
    cautions: tuple[str, ...]
    """What whoever replays should know about the target."""

    @property
    def ranges(self) -> list[OffsetRange]:
        """The lineages of which something is left."""
        found = [lineage.range for lineage in self.lineages.values()]
        return [one for one in found if self.positions[one.topic_partition] < one.stop]

    def job(self, reins: ReplayControl) -> ReplayPartition:
        """What an engine runs over the ranges."""
        return ReplayPartition(
            target=self.target,
            title=self.title,
            lineages=self.lineages,
            selection=self.selection,
            notes=self.notes,
            reins=reins,
        )

    def expected(self) -> dict[TopicPartition, Fingerprint] | None:
        """What the archive's receipts say of each lineage, where all of it is replayed; else None."""
        if not self.selection.is_everything or not self.source.receipts:
            return None
        found: dict[TopicPartition, Fingerprint] = {}
        for receipt in self.source.receipts:
            at = receipt.range.topic_partition
            found[at] = found.get(at, Fingerprint()) + receipt.fingerprint
        return {at: found.get(at, Fingerprint()) for at in self.lineages}


def plan(
    source: Source, selection: Selection, target: Target, *, name: str | None = None, since: float | None = None
) -> Plan:
    """Looks at everything that could be wrong. `since` makes a new name of it: this very moment's replay."""
    lineages = {lineage.at: lineage for lineage in source.selected(selection)}
    with target.cluster() as cluster, Admin(cluster) as admin:
        topic = cluster.topic(target.topic)
        _require_partitions(target, topic, lineages)
        title = _title(source, selection, target, topic, name=name, since=since)
        _require_same_selection(admin, title)
        notes = _notes(source, title)
        positions = _positions(cluster, target, title, lineages, notes)
        settings = admin.settings(target.topic)[target.topic]
        values = {key: str(one.value) for key, one in settings.items()}
    told = _created(notes)
    return Plan(
        source=source,
        selection=selection,
        target=target,
        title=title,
        lineages=lineages,
        positions=positions,
        notes=notes,
        cautions=(*told, *_cautions(target, values, list(lineages.values()), now=time.time())),
    )


def checked_name(name: str) -> str:
    """The name of a replay, or an error."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no name for a replay: 1 to 100 of the characters a-z A-Z 0-9 . _ -")
    return name


def _title(
    source: Source, selection: Selection, target: Target, topic: Topic, *, name: str | None, since: float | None
) -> ReplayNames:
    what = {
        "path": source.path,
        "topics": sorted(selection.topics),
        "start": None if selection.start is None else selection.start.timestamp(),
        "stop": None if selection.stop is None else selection.stop.timestamp(),
        "where": repr(selection.where),
        "target": target.topic,
        # A topic that was deleted and created again is another one.
        "id": str(topic.id),
        "placement": target.placement.value,
    }
    digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:_DIGITS]
    if name is None:
        name = digest if since is None else f"{digest}-{int(since * 1000):x}"
    return ReplayNames(checked_name(name), digest)


def _require_partitions(target: Target, topic: Topic, lineages: Mapping[TopicPartition, SourcePartition]) -> None:
    if target.placement is not Placement.KEPT:
        return
    highest = max(lineages, key=lambda at: at.partition)
    if highest.partition >= len(topic.partitions):
        raise InputError(
            f"topic {target.topic} has {len(topic.partitions)} partitions and the archive records of {highest}: add"
            " partitions, or let keys decide instead of keeping partitions"
        )


def _require_same_selection(admin: Admin, title: ReplayNames) -> None:
    for group in admin.groups.list_groups():
        if group.name.startswith(title.prefix):
            digest = group.name.removeprefix(title.prefix).partition(":")[0]
            if digest != title.digest:
                raise InputError(
                    f"a replay named {title.name} exists that selects something else, or goes elsewhere (archive,"
                    " topics, times, condition, target and partitions belong to it): give this one another name"
                )


def _positions(
    cluster: Cluster,
    target: Target,
    title: ReplayNames,
    lineages: Mapping[TopicPartition, SourcePartition],
    notes: Notes,
) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for at, lineage in sorted(lineages.items()):
        # Not READ_COMMITTED: the transaction of a run that was killed may be open, and it is ours to abort.
        known = position(cluster, target, title, at, isolation=Isolation.READ_UNCOMMITTED)
        found[at] = notes.checked(lineage.range, known)
    return found


def _notes(source: Source, title: ReplayNames) -> Notes:
    if source.notes is None:
        return NO_NOTES
    return Notes(str(require_inside(Path(source.path), Path(source.notes) / f"{title.name}:{title.digest}")))


def _created(notes: Notes) -> tuple[str, ...]:
    if notes.folder is not None:
        try:
            Path(notes.folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            return (f"no notes can be kept beside the archive ({error}): do not let the replay rest for a week",)
    return ()


def _cautions(
    target: Target, settings: Mapping[str, str], lineages: Sequence[SourcePartition], *, now: float
) -> list[str]:
    found = []
    if settings.get("message.timestamp.type") == "LogAppendTime":
        found.append(f"{target.topic} has message.timestamp.type=LogAppendTime: its brokers replace the timestamps")
    kept = float(settings.get("retention.ms", "-1")) / 1000
    oldest = min(file.first_time for lineage in lineages for file in lineage.files)
    if "delete" in settings.get("cleanup.policy", "") and 0 <= kept < now - oldest:
        found.append(
            f"{target.topic} keeps records for {kept / 86_400:.1f} days and there are some from {shown_time(oldest)}:"
            " its brokers will delete them soon, unless retention.ms is raised"
        )
    return found
