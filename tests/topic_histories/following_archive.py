"""An archiver as a follower: what it hands out is what can be read in its lakes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.parquet as pq

from ottla.engines import local
from ottla.errors import BrokerError, InputError, OffsetsLost
from ottla.fetch.options import OnLost
from ottla.jobs.archive_plan import Cutting
from ottla.jobs.archive_range import ArchiveRange
from ottla.jobs.archiving import ArchiveRequest, Archiving
from ottla.jobs.brokers import Brokers
from ottla.lake.lake import Lake
from ottla.lake.layout import LakeSettings
from ottla.lake.verifying import Checked, verify_files
from ottla.model import TopicPartition

from .following import ANY, TIMES, Entry, Handed, Lost, Restarted, Story
from .world import World

T = TypeVar("T")


class FollowsByArchive:
    """`Archiving.follow` into a Parquet lake. A topic that is another one by now is archived to another place, as the
    error advises; with `on_lost="error"`, so is one that has lost records."""

    follows_cuts = False
    tells = True

    def __init__(self, world: World, folder: Path, *, on_lost: OnLost = OnLost.EARLIEST) -> None:
        self.story: list[Entry] = Story()
        self._world = world
        self._folder = folder
        self._on_lost = on_lost
        self._group = f"archive-{world.topic}"
        self._failed: list[BaseException] = []
        self._lakes: list[Lake] = []
        self._seen: dict[Lake, int] = {}
        self._next_lake()
        self._begin()

    def step(self) -> None:
        """It works by itself; what its ledgers have is read."""
        threading.Event().wait(0.02)
        if self._failed:
            raise self._failed[0]
        self._look()

    def position(self, partition: int) -> int | None:
        """Up to where the present lake has the partition."""
        return self._lakes[-1].positions().get(TopicPartition(self._world.topic, partition))

    def restart(self, meanwhile: Any = None) -> None:
        """Another program goes on with the lake."""
        ended = self._world.clock
        self._end()
        if meanwhile is not None:
            meanwhile()
        self.story.append(Restarted(ended, self._world.clock))
        self._begin()

    def close(self) -> None:
        """Ends it, and reads everything once more."""
        self._end()
        self._look()
        for lake in self._lakes:
            assert list(verify_files(lake, Checked(), deep=True)) == []
        read = [row for lake in self._lakes for path in lake.path.glob("topic=*/**/*.parquet") for row in _rows(path)]
        assert sorted(read) == sorted(entry for entry in self.story if isinstance(entry, Handed))

    @property
    def committed(self) -> dict[int, int] | None:
        """By the group that the positions are committed to."""
        return self._world.committed(self._group)

    def _next_lake(self) -> None:
        self._lakes.append(Lake.create(self._folder / f"lake-{len(self._lakes)}", LakeSettings()))

    def _begin(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="history-archive", daemon=True)
        self._thread.start()

    def _end(self) -> None:
        self._over.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the archiver does not end"
        if self._failed:
            raise self._failed[0]

    def _work(self) -> None:
        while not self._over.is_set():
            try:
                for _ in self._archiving().follow(every=0.05):
                    pass
            except _OverError:
                return
            except (InputError, OffsetsLost) as error:
                self.story.append(Lost(ANY, 0, 0, 0, f"cut back or created again: {error}"))
                self._next_lake()
            except BaseException as error:
                if not _is_gone(error):  # in the middle of being created again
                    self._failed.append(error)
                    return

    def _archiving(self) -> Archiving:
        lake = self._lakes[-1]
        # For so long a task waits for offsets that a log does not have any more.
        brokers = Brokers(bootstrap=self._world.bootstrap, timeouts=replace(TIMES, total=5.0))
        return Archiving(
            Lake.open(lake.path),
            ArchiveRange(brokers=brokers, path=str(lake.path), settings=lake.settings),
            ArchiveRequest(topics=(self._world.topic,), on_lost=self._on_lost, group=self._group),
            engine=local.run,
            cutting=Cutting(file_bytes=1 << 20, workers=2),
            waiting=self._waiting,
        )

    def _waiting(self, step: Callable[[], T], /) -> T:
        if self._over.is_set():
            raise _OverError
        return step()

    def _look(self) -> None:
        for lake in list(self._lakes):
            for number in range(self._seen.get(lake, 0) + 1, lake.ledger.published() + 1):
                entry = lake.ledger.read(number)
                for one in entry.gaps:
                    self.story.append(
                        Lost(one.range.partition, one.range.start, one.range.stop, one.range.stop, one.reason)
                    )
                for file in entry.files:
                    self.story.extend(_rows(lake.locate(file)))
                self._seen[lake] = number


class _OverError(Exception):
    """The archiver is to end."""


def _is_gone(error: BaseException) -> bool:
    return isinstance(error, BrokerError) and error.row.name in ("UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC_ID")


def _rows(path: Path) -> list[Handed]:
    table = pq.ParquetFile(path).read()
    columns = (table.column(name).to_pylist() for name in ("partition", "offset", "value"))
    return [Handed(*row) for row in zip(*columns, strict=True)]
