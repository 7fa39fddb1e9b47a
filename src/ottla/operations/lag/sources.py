"""Readers that are no groups of Kafka: Spark's streaming queries by their checkpoints, and mirrors by their journal.

Folders and clusters come in, `GroupSample` values go out. A reader that cannot be read is a sample with an error, and
never spoils the others. Nothing is changed.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ottla.errors import ConfigError, OttlaError
from ottla.model import TopicPartition
from ottla.net.cluster import Cluster
from ottla.operations.lag.values import GroupSample, GroupType

_MOST_BYTES = 64 << 20
"""Of a file in a checkpoint."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint of a streaming query. `name` is what its group is called."""

    path: Path
    name: str

    @classmethod
    def at(cls, path: Path) -> Checkpoint:
        """Return the checkpoint in a folder. Raises `ConfigError` if the folder is none."""
        if not (path / "offsets").is_dir():
            raise ConfigError(f"{path} is no checkpoint of a streaming query: it has no folder 'offsets'")
        return cls(path, path.resolve().name)

    @classmethod
    def at_all(cls, paths: Iterable[Path]) -> list[Checkpoint]:
        """Return those in several folders. Where folders have one name, their whole paths are the names."""
        found = {each.path.resolve(): each for each in map(cls.at, paths)}
        counts = Counter(each.name for each in found.values())
        return [each if counts[each.name] == 1 else cls(each.path, str(path)) for path, each in found.items()]

    def read(self) -> GroupSample:
        """Return where the query is: behind its last batch that is committed."""
        try:
            committed = self._committed()
        except (OSError, ValueError, TypeError, AttributeError) as error:
            reason = f"the checkpoint {self.path} cannot be read: {error}"
            return GroupSample(self.name, GroupType.SPARK, error=reason)
        return GroupSample(self.name, GroupType.SPARK, committed=committed)

    def _committed(self) -> dict[TopicPartition, int]:
        from ottla.spark.stream_position import offsets_of

        done = _batches(self.path / "commits")
        known = _batches(self.path / "offsets")
        last = max(done & known, default=None)
        if last is None:
            return {}
        file = self.path / "offsets" / str(last)
        if file.stat().st_size > _MOST_BYTES:
            raise ValueError(f"{file.name} is larger than {_MOST_BYTES} bytes")
        # A version, metadata, and a line for each source of the query; other kinds of sources have other lines.
        lines = file.read_text(encoding="utf-8").splitlines()[2:]
        committed: dict[TopicPartition, int] = {}
        for line in lines:
            try:
                committed |= offsets_of(json.loads(line))
            except (ValueError, TypeError, AttributeError):
                continue
        return committed


def _batches(folder: Path) -> set[int]:
    """Return the numbers of the batches that a folder of a checkpoint has."""
    try:
        return {int(file.name) for file in folder.iterdir() if file.name.isdecimal()}
    except FileNotFoundError:
        return set()


class Mirrors:
    """The links that mirror to a cluster, by their journal there. Reads nothing while the journal does not exist."""

    def __init__(self, cluster: Cluster, *, journal: str) -> None:
        self._cluster = cluster
        self._journal = journal
        self._resources = ExitStack()
        self._open: dict[str, object] = {}

    def close(self) -> None:
        """Close what was opened."""
        self._resources.close()

    def read(self, *, now: float) -> list[GroupSample]:
        """Return the links as their journal has them."""
        topic = self._cluster.metadata([self._journal]).topics.get(self._journal)
        if topic is None or not topic.partitions:
            return []
        # Reading records takes modules and memory that clusters without mirrors do without.
        from ottla.jobs.mirror_status import read_status
        from ottla.mirror.journal import Journal, writers

        samples = []
        for name in sorted({writer.link for writer in writers(self._cluster, topic=self._journal)}):
            journal = self._open.get(name)
            if not isinstance(journal, Journal):
                journal = self._open[name] = Journal(self._cluster, link=name, topic=self._journal)
                self._resources.callback(journal.close)
            status = read_status(journal, self._cluster, source=None, now=now)
            partitions = status.partitions
            # Where the source's logs end is known from a process that runs, and from nowhere else.
            is_running = status.state == "running"
            ended = [each for each in partitions if is_running and each.source_end is not None]
            samples.append(
                GroupSample(
                    name,
                    GroupType.MIRROR,
                    status.state,
                    committed={each.source: each.position for each in partitions},
                    ends={each.source: max(each.position, each.source_end or 0) for each in ended},
                    seconds={each.source: each.lag.seconds for each in ended if each.lag.seconds is not None},
                    is_alive=is_running,
                    error="its process has been silent for a minute" if status.state == "stale" else None,
                )
            )
        return samples


def readers(
    checkpoints: Sequence[Checkpoint], mirrors: Mirrors | None, *, clock: Callable[[], float]
) -> Callable[[], Sequence[GroupSample]]:
    """Return a function that reads all of them, for `Poller.poll`."""

    def read() -> list[GroupSample]:
        samples = [checkpoint.read() for checkpoint in checkpoints]
        if mirrors is not None:
            try:
                samples += mirrors.read(now=clock())
            except OttlaError as error:
                _log.warning("cannot read the journal of mirrors: %s", error)
        return samples

    return read
