"""Paths that a ledger names: which are accepted, and where they lead.

A ledger is a file that others can write, and its paths decide what is opened, moved and deleted. So a path is checked
twice: as a text when an entry is read (`data_path`, `staged_path`), and with all links resolved each time before a file
is touched (`located`). What leads out of the archive is refused.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PureWindowsPath

from ottla.errors import LakeDamaged
from ottla.lake import layout

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_LONGEST = 4096


def data_path(text: str) -> str:
    """The text, if it can be the path of a file with records: relative, and in no folder of Ottla's or Delta's own."""
    parts = _parts(text)
    if any(part.startswith(("_", ".")) for part in parts) or not text.endswith(layout.SUFFIX):
        raise ValueError(f"{text!r} is no path of a file with records")
    return text


def staged_path(text: str) -> str:
    """The text, if it can be the path of a staged file: in the folder of an attempt, below `_ottla/staging`."""
    parts = _parts(text)
    is_staged = text.startswith(f"{layout.STAGING}/") and text.endswith(layout.SUFFIX + layout.STAGED)
    if not is_staged or len(parts) < len(layout.STAGING.split("/")) + 2:
        raise ValueError(f"{text!r} is no path of a staged file")
    return text


def topic_name(text: str) -> str:
    """The text, if Kafka accepts it as the name of a topic: it becomes a part of paths."""
    if not _TOPIC.fullmatch(text) or text in (".", ".."):
        raise ValueError(f"{text!r} is no name of a topic")
    return text


def attempt_of(staged: str) -> str:
    """The folder of the attempt that has staged a file, relative to the archive."""
    depth = len(layout.STAGING.split("/")) + 1
    return "/".join(_parts(staged_path(staged))[:depth])


def located(root: Path, text: str) -> Path:
    """The path inside the archive, whatever links there are; LakeDamaged if it leads elsewhere."""
    try:
        path = root.joinpath(*_parts(text))
    except ValueError as error:
        raise LakeDamaged(root, str(error)) from error
    return require_inside(root, path)


def require_inside(root: Path, path: Path) -> Path:
    """The path, if it is below the root when all links are resolved; LakeDamaged if not."""
    base, real = os.path.realpath(root), os.path.realpath(path)
    if os.path.commonpath([base, real]) != base:
        raise LakeDamaged(
            root,
            f"{os.path.relpath(path, root)} leads out of it through a link, to {real}. Nothing there is read or"
            " written: remove the link, and find out who has put it there",
        )
    return path


def _parts(text: str) -> list[str]:
    parts = text.split("/")
    if (
        len(text) > _LONGEST
        or "\0" in text
        or "\\" in text
        or PureWindowsPath(text).drive
        or any(part in ("", ".", "..") for part in parts)
    ):
        raise ValueError(f"{text!r} is no path inside an archive")
    return parts
