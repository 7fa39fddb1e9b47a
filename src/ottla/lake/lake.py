"""`Lake`: an archive on disk. What tasks have staged comes in; recorded and published, it is there exactly once.

An entry of the ledger is the moment at which records come in; publishing it moves its files to where readers look, and
can be done again by anybody. An entry is published before the next one is created, so that after a kill only the last
one can be half published, and opening the archive for writing finishes it. What was never recorded never becomes
visible. Nothing is read from brokers here.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ottla.errors import LakeConflict, LakeDamaged, LakeError, NotALake
from ottla.files import sync
from ottla.lake import layout
from ottla.lake.append_rule import Step, step
from ottla.lake.checksummed import seal, unseal
from ottla.lake.layout import Format, LakeSettings
from ottla.lake.ledger import REPAIR, Ledger, create_file
from ottla.lake.paths import attempt_of, data_path, located, staged_path
from ottla.lake.staleness import require_known
from ottla.lake.values import Archived, Entry, Gap, LakeFile, WrittenBy
from ottla.model import TopicPartition

SWEPT_SECONDS = 86_400.0
"""Staged files that nobody has touched for so long belong to nobody any more."""
_OWN = (
    *(layout.SETTINGS, layout.LEDGER, layout.PUBLISHED, layout.STAGING, layout.ASIDE),
    *(layout.CHECKPOINTS, layout.REPLAYS, layout.DELTA_LOG),
)
_RACES = 100
"""How often another archiver may be faster before we believe that something else is wrong."""


class Lake:
    """An archive that exists: see `open` and `create`. It holds no lock and nothing open."""

    def __init__(self, path: Path, settings: LakeSettings, identity: str = "") -> None:
        self.path = path
        self.id = identity
        """Another for every archive: what is kept elsewhere (a checkpoint) can say to which it belongs."""
        self.settings = settings
        self.ledger = Ledger(path)
        self._published = 0
        """Up to this entry all is known to be published."""
        self._is_checked = False
        """Whether files and Delta log were compared with the ledger."""

    def __repr__(self) -> str:
        return f"<Lake {self.path} {self.settings.format.value}>"

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Lake:
        """An archive that is there; nothing is written."""
        root = _local(path)
        file = root / layout.SETTINGS
        if not root.exists():
            raise NotALake(root, "there is no such folder")
        _require_own(root)
        try:
            content = unseal(file.read_bytes(), layout.SETTINGS_KEYS)
        except FileNotFoundError:
            raise NotALake(root, f"no archive of Ottla is there: {layout.SETTINGS} is missing") from None
        except (OSError, msgspec.MsgspecError, ValueError) as error:
            raise LakeDamaged(root, f"{layout.SETTINGS} cannot be read: {error}") from error
        return cls(root, _settings(root, content), str(content.get("id", "")))

    @classmethod
    def find(cls, path: str | os.PathLike[str]) -> Lake | None:
        """The archive that is there, or None where one may be created; a folder with anything else is refused."""
        root = _local(path)
        if (root / layout.SETTINGS).exists():
            return cls.open(root)
        _require_empty(root)
        return None

    @classmethod
    def create(cls, path: str | os.PathLike[str], settings: LakeSettings) -> Lake:
        """A new archive, or the one that is there if it has these settings; a folder with anything else is refused."""
        root = _local(path)
        file = root / layout.SETTINGS
        if not file.exists():
            _require_empty(root)
            _require_own(root)
            try:
                (root / layout.LEDGER).mkdir(parents=True, exist_ok=True)
                (root / layout.STAGING).mkdir(exist_ok=True)
            except OSError as error:
                raise LakeError(root, f"it cannot be created: {error}") from error
            content = {**settings.to_json(), "id": uuid.uuid4().hex}
            create_file(file, seal(content), root=root)
        lake = cls.open(root)
        _require_same(root, lake.settings, settings)
        return lake

    # What is there

    def positions(self) -> dict[TopicPartition, int]:
        """The next offset of every partition of which something is known."""
        last = self.ledger.last()
        return {} if last is None else dict(last.positions)

    def files(
        self, topics: Collection[str] | None = None, *, partitions: Collection[TopicPartition] | None = None
    ) -> list[LakeFile]:
        """The files of the archive, by topic, partition and offset."""
        found = [
            one
            for entry in self.ledger.entries()
            for one in entry.files
            if (topics is None or one.range.topic in topics)
            and (partitions is None or one.range.topic_partition in partitions)
        ]
        return sorted(found, key=lambda one: (one.range, one.first_offset))

    def locate(self, file: LakeFile) -> Path:
        """Where the file is now: where readers look, or still staged if its entry was recorded and not published.

        LakeDamaged if a link leads out of the archive.
        """
        final = self._final(file)
        staged = self._staged(file)
        return staged if not final.exists() and staged.exists() else final

    # Bringing something in

    def recover(self) -> Entry | None:
        """Finishes the entry that somebody may have left half published; call it before writing. Returns the last.

        LakeDamaged if there is more in the archive than the ledger knows: going on would double or lose records.
        """
        if not self._is_checked:
            require_known(self)
            self._is_checked = True
        last = self.ledger.last()
        if last is not None and last.number > self._published:
            if self.ledger.published() < last.number:
                self.publish(last)
            self._published = last.number
        return last

    def append(
        self,
        done: Iterable[Archived],
        *,
        by: WrittenBy,
        gaps: Sequence[Gap] = (),
        starts: Mapping[TopicPartition, int] | None = None,
        topics: Mapping[str, str] | None = None,
    ) -> Entry | None:
        """Records what tasks have staged, and publishes it. Returns the entry; None if there was nothing new in it.

        Of each partition the ranges must follow what is there, one after the other, or a gap that explains why not.
        Ranges that are there already are left out, and their files thrown away: another archiver was faster. `starts`
        says where partitions begin of which nothing is known; `topics` has the ids of the topics.
        """
        results = sorted(done, key=lambda one: one.receipt.range)
        for _ in range(_RACES):
            last = self.recover()
            known = {} if last is None else last.positions
            ids = dict({} if last is None else last.topics)
            self._require_same_topics(ids, topics or {})
            found = step(known, results, gaps=gaps, starts=starts or {}, root=self.path)
            self._discard_files(found.superseded)
            if found.is_empty(known):
                return None
            self._require_staged(found)
            entry = _entry(found, number=1 if last is None else last.number + 1, by=by, topics=ids | dict(topics or {}))
            if self.ledger.create(entry):
                self.publish(entry)
                return entry
        raise LakeConflict(self.path, f"{_RACES} other entries came first: how many archivers are at work there?")

    def publish(self, entry: Entry) -> None:
        """Moves the files of a recorded entry to where readers look. Doing it again does no harm."""
        self._reveal(entry)
        self.ledger.mark(entry.number)  # before the staged files go: without either, nobody could tell
        self._discard_files(entry.files)
        self._published = max(self._published, entry.number)

    def _reveal(self, entry: Entry) -> None:
        if self.settings.format is Format.DELTA:
            from ottla.lake import delta

            if delta.transaction(self.path) >= entry.number:
                return  # what the table has of these files now is for those who maintain it
        moved = {self._final(file).parent for file in entry.files if self._move(file)}
        for folder in moved:
            sync(folder)
        if self.settings.format is Format.DELTA:
            delta.commit(self.path, self.settings, entry)

    def discard(self, done: Iterable[Archived]) -> None:
        """Throws away what tasks have staged and nobody will record."""
        self._discard_files([file for one in done for file in one.files])

    def sweep(self, older: float = SWEPT_SECONDS, *, run: str = "") -> int:
        """Removes staged files that were not touched for so many seconds, of one run or of all; what is recorded stays.

        Returns how many attempts had left some.
        """
        last = self.ledger.last()
        kept = set() if last is None else {self.path / attempt_of(file.staged) for file in last.files}
        limit = time.time() - older
        swept = 0
        for attempt in self.staged():
            if attempt.name.startswith(run) and attempt not in kept and _newest(attempt) <= limit:
                shutil.rmtree(attempt, ignore_errors=True)
                swept += 1
        return swept

    def staged(self) -> list[Path]:
        """The folders of attempts that are under way, or were left behind. A link is none."""
        try:
            found = sorted(located(self.path, layout.STAGING).iterdir())
        except FileNotFoundError:
            return []
        return [attempt for attempt in found if attempt.is_dir() and not attempt.is_symlink()]

    def _discard_files(self, files: Iterable[LakeFile]) -> None:
        for attempt in {attempt_of(file.staged) for file in files}:
            shutil.rmtree(located(self.path, attempt), ignore_errors=True)  # it follows no link

    def _final(self, file: LakeFile) -> Path:
        return self._inside(data_path, file.path)

    def _staged(self, file: LakeFile) -> Path:
        return self._inside(staged_path, file.staged)

    def _inside(self, checked: Callable[[str], str], text: str) -> Path:
        try:
            return located(self.path, checked(text))
        except ValueError as error:
            raise LakeDamaged(self.path, str(error)) from error

    def _move(self, file: LakeFile) -> bool:
        final, staged = self._final(file), self._staged(file)
        try:
            final.parent.mkdir(parents=True, exist_ok=True)
            os.rename(staged, final)
        except FileNotFoundError:
            if final.exists():
                return False  # somebody has moved it already
            if not file.sha256 and not located(self.path, attempt_of(file.staged)).exists():
                return False  # recorded before there were marks, published, and deleted since
            raise LakeDamaged(
                self.path, f"{file.path} is recorded and neither there nor at {file.staged}. {REPAIR}"
            ) from None
        except OSError as error:
            raise LakeError(self.path, f"{file.staged} cannot be moved to {file.path}: {error}") from error
        return True

    def _require_staged(self, found: Step) -> None:
        for one in found.accepted:
            for file in one.files:
                try:
                    size = os.stat(self._staged(file)).st_size
                except OSError as error:
                    raise LakeError(self.path, f"{file.staged} was staged and is gone: {error}") from error
                if size != file.size_bytes:
                    raise LakeError(self.path, f"{file.staged} has {size} bytes, its task wrote {file.size_bytes}")

    def _require_same_topics(self, known: Mapping[str, str], now: Mapping[str, str]) -> None:
        for topic, there in now.items():
            if known.get(topic, there) != there:
                raise LakeConflict(
                    self.path,
                    f"topic {topic} was deleted and created again (its id was {known[topic]} and is {there}), so that"
                    " its offsets mean other records: archive it to another place",
                )


def _entry(found: Step, *, number: int, by: WrittenBy, topics: Mapping[str, str]) -> Entry:
    return Entry(
        number=number,
        written=time.time(),
        written_by=by,
        receipts=tuple(one.receipt for one in found.accepted),
        files=tuple(file for one in found.accepted for file in one.files),
        gaps=found.gaps,
        untimed=sum(one.untimed for one in found.accepted),
        topics=topics,
        positions=found.positions,
        stored={one.receipt.range: one.stored for one in found.accepted if one.stored is not None},
    )


def _local(path: str | os.PathLike[str]) -> Path:
    text = os.fspath(path)
    scheme, separator, rest = text.partition("://")
    if separator and scheme != "file":
        raise NotALake(
            text, f"{scheme}:// is not supported, only folders that are mounted: give a path such as /data/clicks"
        )
    return Path(rest if separator else text).absolute()


def _settings(root: Path, content: Mapping[str, Any]) -> LakeSettings:
    if content.get("version") != layout.VERSION:
        raise LakeDamaged(
            root, f"{layout.SETTINGS} is of version {content.get('version')}, this Ottla knows {layout.VERSION}"
        )
    try:
        return LakeSettings.from_json(content)
    except (KeyError, TypeError, ValueError) as error:
        raise LakeDamaged(root, f"{layout.SETTINGS} is not understood: {error}") from error


def _require_own(root: Path) -> None:
    """Nothing is written through a link that somebody has put in place of a folder of ours."""
    for name in _OWN:
        located(root, name)


def _require_empty(root: Path) -> None:
    if root.exists() and not root.is_dir():
        raise NotALake(root, "that is a file; an archive is a folder")
    # What a creation that was cut short has left does not count.
    found = sorted(name for name in os.listdir(root) if name != layout.OWN) if root.exists() else []
    if found:
        raise NotALake(
            root,
            f"the folder holds something else ({', '.join(found[:3])}{', ...' if len(found) > 3 else ''}):"
            " give a new or an empty one",
        )


def _require_same(root: Path, there: LakeSettings, asked: LakeSettings) -> None:
    for name, option in (("format", "--format"), ("partition_by", "--partition-by"), ("event_time", "--event-time")):
        before, now = layout.shown(getattr(there, name)), layout.shown(getattr(asked, name))
        if before != now:
            raise LakeError(root, f"it has {option} {before}, not {now}; that cannot be changed: leave the option out")


def _newest(attempt: Path) -> float:
    """When something in the folder was last written."""
    newest = 0.0
    for folder, _, files in os.walk(attempt):
        for name in (".", *files):
            try:
                newest = max(newest, os.stat(os.path.join(folder, name)).st_mtime)
            except OSError:
                continue
    return newest
