"""`Lake`: an archive on disk. Staged files of tasks come in; recorded and published, they are in it exactly once.

Records belong to the archive once a ledger entry records them. Publishing an entry moves its files to where readers
look; any process can repeat that. An entry is published before the next one is created, so after a kill only the last
entry can be half published, and `recover` finishes it. What was never recorded never becomes visible. This module
contacts no broker.
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

from ottla.errors import Advice, LakeConflict, LakeDamaged, LakeError, NotALake
from ottla.files import sync
from ottla.lake import layout
from ottla.lake.append_rule import Step, step
from ottla.lake.checksummed import seal, unseal
from ottla.lake.layout import Format, LakeSettings
from ottla.lake.ledger import Ledger, create_file
from ottla.lake.paths import attempt_of, data_path, located, staged_path
from ottla.lake.staleness import require_known
from ottla.lake.values import Archived, Entry, Gap, LakeFile, WrittenBy
from ottla.model import TopicPartition

SWEPT_SECONDS = 86_400.0
"""Staged files that were not touched for this long belong to a dead run."""
_OWN = (
    *(layout.SETTINGS, layout.LEDGER, layout.PUBLISHED, layout.STAGING, layout.ASIDE),
    *(layout.CHECKPOINTS, layout.REPLAYS, layout.DELTA_LOG),
)
_RACES = 100
"""How often another archiver may win the next number before it is an error."""


class Lake:
    """An existing archive: see `open` and `create`. It holds no lock and keeps nothing open."""

    def __init__(self, path: Path, settings: LakeSettings, identity: str = "") -> None:
        self.path = path
        self.id = identity
        """Unique, so that state kept elsewhere (a checkpoint) can name the archive it belongs to."""
        self.settings = settings
        self.ledger = Ledger(path)
        self._published = 0
        """All entries up to this one are known to be published."""
        self._is_checked = False
        """Whether files and Delta log have been compared with the ledger."""

    def __repr__(self) -> str:
        return f"<Lake {self.path} {self.settings.format.value}>"

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Lake:
        """Open the archive at `path`. Writes nothing.

        Raises `NotALake` if the folder is missing or not an archive, and `LakeDamaged` if its settings are unreadable.
        """
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
        """Open the archive at `path` if it exists; return None if one can be created there.

        Raises `NotALake` if the folder has other content, and `LakeDamaged` if the archive's settings are unreadable.
        """
        root = _local(path)
        if (root / layout.SETTINGS).exists():
            return cls.open(root)
        _require_empty(root)
        return None

    @classmethod
    def create(cls, path: str | os.PathLike[str], settings: LakeSettings) -> Lake:
        """Create an archive at `path`, or open the existing one if it has these `settings`.

        Raises `NotALake` if the folder has other content, and `LakeError` if the archive has other settings or cannot
        be created.
        """
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

    # Reading

    def positions(self) -> dict[TopicPartition, int]:
        """Return the next offset of every partition that the archive knows."""
        last = self.ledger.last()
        return {} if last is None else dict(last.positions)

    def files(
        self, topics: Collection[str] | None = None, *, partitions: Collection[TopicPartition] | None = None
    ) -> list[LakeFile]:
        """Return the files of the archive, by topic, partition and offset."""
        files = [
            file
            for entry in self.ledger.entries()
            for file in entry.files
            if (topics is None or file.range.topic in topics)
            and (partitions is None or file.range.topic_partition in partitions)
        ]
        return sorted(files, key=lambda file: (file.range, file.first_offset))

    def locate(self, file: LakeFile) -> Path:
        """Return where `file` is now: where readers look, or still staged if its entry is not published yet.

        Raises `LakeDamaged` if a link leads out of the archive.
        """
        final = self._final(file)
        staged = self._staged(file)
        return staged if not final.exists() and staged.exists() else final

    # Writing

    def recover(self) -> Entry | None:
        """Publish the last entry if a killed run left it half published, and return it. Call this before writing.

        Raises `LakeDamaged` if the archive has more than its ledger: writing would then duplicate or lose records.
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
        """Record and publish `done`, what tasks have staged; `by` says who writes.

        Returns the entry, or None if it would contain nothing new.
        The ranges of a partition must follow the archive without holes, except for `gaps`. Ranges that the archive
        already has are left out, and their files removed: another archiver was faster. `starts` has positions for
        partitions that the archive does not know; `topics` has topic ids.

        Raises `LakeConflict` if a range does not follow or a topic was created again, and `LakeError` if files are
        missing or cannot be moved.
        """
        results = sorted(done, key=lambda result: result.receipt.range)
        for _ in range(_RACES):
            # Optimistic: build the entry on the last one, and start over if another archiver takes the number first.
            last = self.recover()
            known = {} if last is None else last.positions
            ids = dict({} if last is None else last.topics)
            self._require_same_topics(ids, topics or {})
            next_step = step(known, results, gaps=gaps, starts=starts or {}, root=self.path)
            self._discard_files(next_step.superseded)
            if next_step.is_empty(known):
                return None
            self._require_staged(next_step)
            number = 1 if last is None else last.number + 1
            entry = _entry(next_step, number=number, by=by, topics=ids | dict(topics or {}))
            if self.ledger.create(entry):
                self.publish(entry)
                return entry
        raise LakeConflict(self.path, f"{_RACES} other entries came first: how many archivers are running?")

    def publish(self, entry: Entry) -> None:
        """Move the files of a recorded `entry` to where readers look. Can be repeated.

        Raises `LakeDamaged` if a file is gone, and `LakeError` if one cannot be moved.
        """
        self._reveal(entry)
        self.ledger.mark(entry.number)  # before removing the staged folder: that and the mark prove that this was done
        self._discard_files(entry.files)
        self._published = max(self._published, entry.number)

    def _reveal(self, entry: Entry) -> None:
        if self.settings.format is Format.DELTA:
            from ottla.lake import delta

            if delta.transaction(self.path) >= entry.number:
                return  # committed before; a compaction may have replaced the files since, so leave them alone
        moved = {self._final(file).parent for file in entry.files if self._move(file)}
        for folder in moved:
            sync(folder)  # a rename is durable once its folder is
        if self.settings.format is Format.DELTA:
            delta.commit(self.path, self.settings, entry)

    def discard(self, done: Iterable[Archived]) -> None:
        """Remove the staged files of `done`, which no entry will record."""
        self._discard_files([file for result in done for file in result.files])

    def sweep(self, older: float = SWEPT_SECONDS, *, run: str = "") -> int:
        """Remove staged files that were not touched for `older` seconds, of one `run` or of all. Keeps recorded ones.

        Returns the number of removed attempts.
        """
        last = self.ledger.last()
        # The last entry may not be published yet: its files are still in staging.
        kept = set() if last is None else {self.path / attempt_of(file.staged) for file in last.files}
        limit = time.time() - older
        swept = 0
        for attempt in self.staged():
            if attempt.name.startswith(run) and attempt not in kept and _newest(attempt) <= limit:
                shutil.rmtree(attempt, ignore_errors=True)
                swept += 1
        return swept

    def staged(self) -> list[Path]:
        """Return the folders of attempts that are running or were left behind. Ignores links."""
        try:
            names = sorted(located(self.path, layout.STAGING).iterdir())
        except FileNotFoundError:
            return []
        return [attempt for attempt in names if attempt.is_dir() and not attempt.is_symlink()]

    def _discard_files(self, files: Iterable[LakeFile]) -> None:
        for attempt in {attempt_of(file.staged) for file in files}:
            shutil.rmtree(located(self.path, attempt), ignore_errors=True)  # rmtree follows no links

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
                return False  # moved before
            if not file.sha256 and not located(self.path, attempt_of(file.staged)).exists():
                return False  # an entry of a version without marks: published, and deleted since
            raise LakeDamaged(
                self.path, f"{file.path} is recorded and neither there nor at {file.staged}. {Advice.LAKE_REPAIR}"
            ) from None
        except OSError as error:
            raise LakeError(self.path, f"{file.staged} cannot be moved to {file.path}: {error}") from error
        return True

    def _require_staged(self, next_step: Step) -> None:
        for result in next_step.accepted:
            for file in result.files:
                try:
                    size = os.stat(self._staged(file)).st_size
                except OSError as error:
                    raise LakeError(self.path, f"{file.staged} was staged and is gone: {error}") from error
                if size != file.size_bytes:
                    raise LakeError(self.path, f"{file.staged} has {size} bytes, its task wrote {file.size_bytes}")

    def _require_same_topics(self, known: Mapping[str, str], now: Mapping[str, str]) -> None:
        for topic, topic_id in now.items():
            if known.get(topic, topic_id) != topic_id:
                raise LakeConflict(
                    self.path,
                    f"topic {topic} was deleted and created again (its id was {known[topic]} and is {topic_id}), so its"
                    " offsets mean other records: archive it to another place",
                )


def _entry(next_step: Step, *, number: int, by: WrittenBy, topics: Mapping[str, str]) -> Entry:
    results = next_step.accepted
    return Entry(
        number=number,
        written=time.time(),
        written_by=by,
        receipts=tuple(result.receipt for result in results),
        files=tuple(file for result in results for file in result.files),
        gaps=next_step.gaps,
        untimed=sum(result.untimed for result in results),
        topics=topics,
        positions=next_step.positions,
        stored={result.receipt.range: result.stored for result in results if result.stored is not None},
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
    """Refuse links in place of the archive's own folders: writing through one would change files elsewhere."""
    for name in _OWN:
        located(root, name)


def _require_empty(root: Path) -> None:
    if root.exists() and not root.is_dir():
        raise NotALake(root, "that is a file; an archive is a folder")
    # The folder `_ottla` alone is what a killed creation leaves.
    names = sorted(name for name in os.listdir(root) if name != layout.OWN) if root.exists() else []
    if names:
        raise NotALake(
            root,
            f"the folder holds something else ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''}):"
            " give a new or an empty one",
        )


def _require_same(root: Path, there: LakeSettings, asked: LakeSettings) -> None:
    for name, words in _SETTING_WORDS.items():
        before, now = layout.shown(getattr(there, name)), layout.shown(getattr(asked, name))
        if before != now:
            raise LakeError(root, f"{words} {before}, not {now}, which cannot be changed: {Advice.LAKE_LAYOUT}")


_SETTING_WORDS = {
    "format": "its format is",
    "partition_by": "it is partitioned by",
    "event_time": "its event time is",
}


def _newest(attempt: Path) -> float:
    """Return when something in the folder was last written."""
    newest = 0.0
    for folder, _, files in os.walk(attempt):
        for name in (".", *files):
            try:
                newest = max(newest, os.stat(os.path.join(folder, name)).st_mtime)
            except OSError:
                continue
    return newest
