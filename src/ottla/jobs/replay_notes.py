"""Notes of a replay beside the archive: how far each lineage was, and the fingerprint of what was sent until then.

The position that counts is the one the brokers have, committed with the records. They forget it when a replay rests
for longer than `offsets.retention.minutes` (a week, unless set otherwise), and would let it begin anew: these notes are
there to notice that, and to prove at the end what several runs have sent together. Losing them costs nothing else.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ottla.errors import LakeError
from ottla.model import Fingerprint, OffsetRange, TopicPartition

_log = logging.getLogger(__name__)
_REMEMBERED_SECONDS = 86_400.0
"""Brokers are trusted to know a position for so long."""


@dataclass(frozen=True, slots=True)
class Note:
    """How far a lineage was."""

    position: int
    fingerprint: Fingerprint
    """Of everything sent before the position, by all runs."""
    written: float
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Notes:
    """The notes of one replay, in a folder of its own; without a folder, there are none."""

    folder: str | None

    def read(self, at: TopicPartition) -> Note | None:
        """The note of a lineage; None if there is none that can be read."""
        if self.folder is None:
            return None
        try:
            row = msgspec.json.decode(self._file(at).read_bytes())
            return Note(row["position"], Fingerprint.parse(row["fingerprint"]), row["written"])
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
            _log.warning("the note %s cannot be read: %s", self._file(at), error)
            return None

    def write(self, at: TopicPartition, note: Note) -> None:
        """Replaces the note of a lineage; a failure is logged, since the replay does not depend on it."""
        if self.folder is None:
            return
        file = self._file(at)
        draft = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
        row = {"position": note.position, "fingerprint": str(note.fingerprint), "written": note.written}
        try:
            draft.write_bytes(msgspec.json.encode(row))
            os.replace(draft, file)
        except OSError as error:
            _log.warning("the note %s cannot be written: %s", file, error)

    def checked(self, one: OffsetRange, known: int | None) -> int:
        """The position of a lineage, given the one that the brokers know; an error if they have forgotten one."""
        if known is not None:
            return known
        note = self.read(one.topic_partition)
        if note is None or time.time() - note.written < _REMEMBERED_SECONDS:
            return 0
        if note.position >= one.stop:
            return note.position
        raise LakeError(
            self.folder,
            f"the brokers have forgotten how far the replay of {one.topic_partition} was: it has rested for too long."
            f" It had got to offset {note.position} at least, so beginning anew would write records twice: replay what"
            f" is left under another name (--where 'offset >= {note.position}'), or everything with --again",
        )

    def _file(self, at: TopicPartition) -> Path:
        return Path(self.folder or "") / f"{at.topic}:{at.partition}.json"


NO_NOTES = Notes(None)
