"""Ports that pages name, and free ones instead of those that are taken on this machine.

Ports go by tens: where one of 9090 to 9099 is taken, all of them are replaced, so that neighbours stay neighbours, and
by ports of as many digits, so that tables keep their columns. A ten belongs to one test run at a time.
"""

from __future__ import annotations

import os
import re
import socket
import tempfile
from pathlib import Path

from filelock import FileLock, Timeout

# Below 1024 are ports that nothing listens on, for pages that show what a refused connection looks like.
_NAMED = re.compile(r"(?:(?:localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1\]):|--port[ =])(\d{4,5})\b")
# Not 9092,000, but the port before the next address: 127.0.0.1:9092,127.0.0.1:9093.
_NUMBER = re.compile(r"(?<![\d.,])[1-9]\d{3,4}(?!\d|,\d{3}(?![\d.]))")
_FIRST_TEN, _LAST_TEN = 500, 999


class Ports:
    """The ports of one test run."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or Path(tempfile.gettempdir())
        self._tens: dict[int, int] = {}
        self._locks: list[FileLock] = []

    def replaced(self, text: str) -> str:
        """Return the text of a page with ports that this run has."""
        for port in _NAMED.findall(text):
            ten = int(port) // 10
            if ten > 102 and ten not in self._tens:
                self._tens[ten] = self._claim(ten)
        return _NUMBER.sub(lambda match: str(self._port(int(match[0]))), text)

    def release(self) -> None:
        """Leave all of them to others."""
        for lock in self._locks:
            lock.release()

    def _port(self, port: int) -> int:
        ten, last = divmod(port, 10)
        return 10 * self._tens.get(ten, ten) + last

    def _claim(self, wanted: int) -> int:
        others = range(_FIRST_TEN, _LAST_TEN + 1)
        start = wanted % len(others)
        candidates: list[int] = [wanted, *others[start:], *others[:start]]
        for ten in candidates:
            if ten in self._tens.values():
                continue
            lock = FileLock(self._folder / f"ottla-pages-{os.getuid()}-{ten}0.lock")
            try:
                lock.acquire(timeout=0)
            except Timeout:
                continue
            if all(_is_free(ten * 10 + last) for last in range(10)):
                self._locks.append(lock)
                return ten
            lock.release()
        raise AssertionError("no ten ports in a row are free")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
