"""Looks into a spool without owning it: what is in it, what is damaged, who has it, and the batches themselves.

Comes in: the path of a spool, of a dead program or a living one. Goes out: values; nothing is locked, cut or deleted.
What a living owner is writing or removing at that moment may be missing.
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
    """What is still to be sent, oldest first; what was lost; and who owns the spool at this moment, None for nobody."""
    contents, owner = _look(Path(path).absolute())
    return contents.live, contents.damage, owner


def export(path: AnyPath) -> Iterator[tuple[Stored, Batch]]:
    """Every batch that is still to be sent, oldest first; damaged ones are left out (`inspect` names them)."""
    return _batches(Path(path).absolute())  # here, not where the first one is taken: the program may move


def _batches(directory: Path) -> Iterator[tuple[Stored, Batch]]:
    contents, _ = _look(directory)
    for stored in contents.live:
        try:
            yield stored, _read(directory, stored)
        except FileNotFoundError:
            continue  # delivered meanwhile by its owner
        except CorruptBatch as exc:
            logger.warning("left out, the disk now gives other bytes than a moment ago: %s", exc)
        except OSError as exc:
            raise SpoolFailed(log_path(directory, stored.ticket.segment), f"cannot be read: {exc.strerror}") from exc


def _look(directory: Path) -> tuple[Contents, Owner | None]:
    if not os.path.isdir(directory):
        raise SpoolFailed(directory, "is not a directory" if os.path.exists(directory) else "does not exist")
    record, is_held = observe(directory)
    contents = survey(directory, None if is_held else record)
    if record is None and not is_held and not contents.live and not contents.damage:
        raise SpoolFailed(directory, "is no spool: nothing in it was written by one")
    if not is_held:
        return contents, None
    contents.damage = [d for d in contents.damage if d.reason != CUT_SHORT]  # its owner is just writing there
    return contents, record.owner if record is not None else Owner(0, 0.0, "")


def _read(directory: Path, stored: Stored) -> Batch:
    ticket = stored.ticket
    with open_segment(log_path(directory, ticket.segment)) as file:
        file.seek(ticket.position)
        data = file.read(ticket.size_bytes)
    return batch_in(data, ticket)
