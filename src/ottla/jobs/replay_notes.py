"""Notes of a replay, kept beside the archive: the position of each source partition and the fingerprint sent so far.

The position that counts is the one on the brokers, committed with the records. Brokers forget it when a replay rests
for longer than `offsets.retention.minutes` (a week by default); the replay would then start over and write records
twice. The notes detect that. They also let several runs prove together what they sent. Losing them costs nothing else.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ottla.errors import Advice, LakeError
from ottla.model import Fingerprint, OffsetRange, TopicPartition

_log = logging.getLogger(__name__)
_REMEMBERED_SECONDS = 86_400.0
"""A missing position is taken for a new replay, not a forgotten one, if the note is younger than this."""


@dataclass(frozen=True, slots=True)
class Note:
    """The progress of one source partition."""

    position: int
    fingerprint: Fingerprint
    """Of everything sent before the position, by all runs."""
    written: float
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Notes:
    """The notes of one replay, in their own folder. Without a folder nothing is kept."""

    folder: str | None

    def read(self, partition: TopicPartition) -> Note | None:
        """Return the note of a source partition; None if it has no readable one."""
        if self.folder is None:
            return None
        try:
            row = msgspec.json.decode(self._file(partition).read_bytes())
            return Note(row["position"], Fingerprint.parse(row["fingerprint"]), row["written"])
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
            _log.warning("cannot read the note %s: %s", self._file(partition), error)
            return None

    def write(self, partition: TopicPartition, note: Note) -> None:
        """Replace the note of a source partition. A failure is logged, not raised: the replay does not depend on it."""
        if self.folder is None:
            return
        file = self._file(partition)
        draft = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
        row = {"position": note.position, "fingerprint": str(note.fingerprint), "written": note.written}
        try:
            draft.write_bytes(msgspec.json.encode(row))
            os.replace(draft, file)
        except OSError as error:
            _log.warning("cannot write the note %s: %s", file, error)

    def checked(self, span: OffsetRange, committed: int | None) -> int:
        """Return the position of a source partition, given the one that the brokers have.

        Raises `LakeError` if the brokers have forgotten a position that the notes have.
        """
        if committed is not None:
            return committed
        note = self.read(span.topic_partition)
        if note is None or time.time() - note.written < _REMEMBERED_SECONDS:
            return 0
        if note.position >= span.stop:
            return note.position
        raise LakeError(
            self.folder,
            f"the brokers have forgotten how far the replay of {span.topic_partition} was: it has rested for too long."
            f" It had got to offset {note.position} at least, so starting over would write records twice: replay what"
            f" is left under another name, where offset >= {note.position}, {Advice.REPLAY_AGAIN}",
        )

    def _file(self, partition: TopicPartition) -> Path:
        return Path(self.folder or "") / f"{partition.topic}:{partition.partition}.json"


NO_NOTES = Notes(None)
