"""Reading files that hold a line or two: an address, a password, a token.

A path comes in, its text goes out. What would never end, or is no such file, is refused before it is read. Errors are
the system's own: the caller knows what the file is for.
"""

from __future__ import annotations

import errno
import os
import stat

MOST_BYTES = 64 << 10


def small_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a small file. Raises `OSError`, also for what is no regular file, too large or not text."""
    # Opening a pipe would wait for who writes into it.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"it is larger than {MOST_BYTES >> 10} kB", os.fspath(path))
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise OSError(errno.EINVAL, "it is not text", os.fspath(path))
    return text


def read_line(path: str | os.PathLike[str]) -> str:
    """Return the first line of a small file, without its end. Raises like `small_text`."""
    return small_text(path).partition("\n")[0].rstrip("\r")
