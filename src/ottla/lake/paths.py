"""Checks the paths in a ledger.

Others can write to a ledger, and its paths decide what is opened, moved and deleted. So each path is checked twice: as
text when an entry is read (`data_path`, `staged_path`), and with all links resolved every time before a file is touched
(`located`). A path that leads out of the archive is refused.
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
    """Return the text if it can be the path of a data file: relative, and not in a folder of Ottla or Delta.

    Raises ValueError otherwise.
    """
    parts = _parts(text)
    if any(part.startswith(("_", ".")) for part in parts) or not text.endswith(layout.SUFFIX):
        raise ValueError(f"{text!r} is no path of a file with records")
    return text


def staged_path(text: str) -> str:
    """Return the text if it can be the path of a staged file: in the folder of an attempt, below `_ottla/staging`.

    Raises ValueError otherwise.
    """
    parts = _parts(text)
    is_staged = text.startswith(f"{layout.STAGING}/") and text.endswith(layout.SUFFIX + layout.STAGED)
    if not is_staged or len(parts) < len(layout.STAGING.split("/")) + 2:
        raise ValueError(f"{text!r} is no path of a staged file")
    return text


def topic_name(text: str) -> str:
    """Return the text if Kafka accepts it as a topic name: it becomes part of paths. Raises ValueError otherwise."""
    if not _TOPIC.fullmatch(text) or text in (".", ".."):
        raise ValueError(f"{text!r} is no name of a topic")
    return text


def attempt_of(staged: str) -> str:
    """Return the folder of the attempt that staged a file, relative to the archive."""
    depth = len(layout.STAGING.split("/")) + 1
    return "/".join(_parts(staged_path(staged))[:depth])


def located(root: Path, text: str) -> Path:
    """Return the path inside the archive. Raises `LakeDamaged` if it leads elsewhere, for example through a link."""
    try:
        path = root.joinpath(*_parts(text))
    except ValueError as error:
        raise LakeDamaged(root, str(error)) from error
    return require_inside(root, path)


def require_inside(root: Path, path: Path) -> Path:
    """Return the path if it is below the root with all links resolved. Raises `LakeDamaged` otherwise."""
    base, real = os.path.realpath(root), os.path.realpath(path)
    if os.path.commonpath([base, real]) != base:
        raise LakeDamaged(
            root,
            f"{os.path.relpath(path, root)} leads out of it through a link, to {real}. Nothing there is read or"
            " written: remove the link, and find out who put it there",
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
