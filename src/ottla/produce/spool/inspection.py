"""Looks into a spool without owning it: its entries, what is damaged, its owner, and the batches themselves.

The path of a spool comes in, of a process that is dead or alive; values go out. Nothing is locked, truncated or
deleted. What a living owner is writing or removing at that moment may be missing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

from ottla.config import Path as AnyPath
from ottla.errors import CorruptBatch, SpoolFailed
from ottla.produce.spool.contents import Contents, log_path, open_segment, survey
from ottla.produce.spool.entries import batch_in
from ottla.produce.spool.ownership import observe
from ottla.produce.spool.scan import CUT_SHORT
from ottla.produce.spool.values import Damage, Owner, Stored
from ottla.wire.batch import Batch

logger = logging.getLogger(__name__)


def inspect(path: AnyPath) -> tuple[list[Stored], list[Damage], Owner | None]:
    """What of the spool at `path` is still to be sent, oldest first; what was lost; and the current owner or None.

    Raises `SpoolFailed`.
    """
    contents, owner = _survey(Path(path).absolute())
    return contents.live, contents.damage, owner


def export(path: AnyPath) -> Iterator[tuple[Stored, Batch]]:
    """Every batch of the spool at `path` that is still to be sent, oldest first; `inspect` names damaged ones.

    Raises `SpoolFailed`.
    """
    return _batches(Path(path).absolute())  # resolved now, not at the first item: the program may change its directory


def _batches(directory: Path) -> Iterator[tuple[Stored, Batch]]:
    """Read and verify the batches one by one, as they are consumed."""
    contents, _ = _survey(directory)
    for stored in contents.live:
        try:
            yield stored, _read(directory, stored)
        except FileNotFoundError:
            continue  # its owner delivered it meanwhile
        except CorruptBatch as exc:
            logger.warning("skipped a batch, the disk now returns other bytes than a moment ago: %s", exc)
        except OSError as exc:
            raise SpoolFailed(log_path(directory, stored.ticket.segment), f"cannot be read: {exc.strerror}") from exc


def _survey(directory: Path) -> tuple[Contents, Owner | None]:
    """The contents and the current owner. Raises `SpoolFailed` if there is no spool."""
    if not os.path.isdir(directory):
        raise SpoolFailed(directory, "is not a directory" if os.path.exists(directory) else "does not exist")
    record, is_held = observe(directory)
    contents = survey(directory, None if is_held else record)
    if record is None and not is_held and not contents.live and not contents.damage:
        raise SpoolFailed(directory, "is not a spool: it contains no spool files")
    if not is_held:
        return contents, None
    contents.damage = [
        damage for damage in contents.damage if damage.reason != CUT_SHORT
    ]  # its owner is writing there right now
    return contents, record.owner if record is not None else Owner(0, 0.0, "")


def _read(directory: Path, stored: Stored) -> Batch:
    """Read and verify one batch. Raises `OSError` or `CorruptBatch`."""
    ticket = stored.ticket
    with open_segment(log_path(directory, ticket.segment)) as file:
        file.seek(ticket.position)
        data = file.read(ticket.size_bytes)
    return batch_in(data, ticket)
