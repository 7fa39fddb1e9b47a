"""Reading files that hold a line or two: an address, a password, a token.

A path comes in, its text goes out. What would never end, or is no such file, is refused before it is read. Errors are
the system's own: the caller knows what the file is for.
"""

from __future__ import annotations

import errno
import os
import select
import stat

MOST_BYTES = 64 << 10
_PIPE_SECONDS = 10.0
"""How long the writer of a pipe, and each piece, may take to come."""


def small_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a small file, or of a pipe such as that of a shell's `<(...)`.

    Raises `OSError`, also for what is neither, too large or not text.
    """
    # Opening a pipe would wait for who writes into it, for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISFIFO(mode):
            _wait(descriptor, path)
        elif not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))
        content = _read(descriptor, path)
    finally:
        os.close(descriptor)
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


def _read(descriptor: int, path: str | os.PathLike[str]) -> bytes:
    """Return what comes until the end: that of a pipe is where its last writer closes it."""
    content = b""
    while len(content) <= MOST_BYTES:
        try:
            piece = os.read(descriptor, MOST_BYTES + 1 - len(content))
        except BlockingIOError:
            _wait(descriptor, path)
            continue
        if not piece:
            break
        content += piece
    return content


def _wait(descriptor: int, path: str | os.PathLike[str]) -> None:
    """Wait for the next piece of a pipe, or its end. Before its writer comes, reading would say that it has ended."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    if not poll.poll(_PIPE_SECONDS * 1000):
        raise OSError(errno.ETIMEDOUT, f"nothing came from the pipe for {_PIPE_SECONDS:g} s", os.fspath(path))
