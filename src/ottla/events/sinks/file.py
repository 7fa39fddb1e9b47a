"""Writes events to a file of JSON lines: one object per event, handed to the system when the call returns.

The file is opened at the first event and appended to. Each line is a single write, so several processes may share it.
Disk errors are raised to the hub, which counts them. Events after `close` are ignored.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from typing import Any

from ottla.config import Path
from ottla.errors import OttlaError
from ottla.events.event import Event, fields_of, text_of


class JsonLinesSink:
    """Appends `{"time": ..., "event": kind, ...fields}` to the file at `path`. `time` is seconds since 1970."""

    def __init__(self, path: Path) -> None:
        self._path = os.path.abspath(path)  # the program may change directory before the first event
        self._lock = threading.Lock()
        self._file: int | None = None
        self._torn = False
        self._closed = False

    def __call__(self, event: Event) -> None:
        line = _line(event, time.time())
        with self._lock:
            if self._closed:
                return
            try:
                self._append(line)
            except OSError as exc:
                raise OttlaError(f"cannot write events to {self._path}: {exc.strerror or exc}") from exc

    def close(self) -> None:
        """Close the file. Later events are ignored."""
        with self._lock:
            self._closed = True
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def _append(self, line: bytes) -> None:
        if self._file is None:
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        # A disk that filled up within a line left part of it behind: that must not spoil this one.
        data = b"\n" + line if self._torn else line
        written = os.write(self._file, data)
        if written != len(data):
            self._torn = self._torn or written > 0
            raise OttlaError(f"cannot write events to {self._path}: only {written} of {len(data)} bytes were written")
        self._torn = False


def _line(event: Event, now: float) -> bytes:
    """Encode an event as one line of JSON. A field named like one of ours gets an underscore."""
    values: dict[str, Any] = {"time": round(now, 6), "event": event.kind}
    for name, value in fields_of(event).items():
        values[f"{name}_" if name in values else name] = _plain(value)
    try:
        text = json.dumps(values, default=str, allow_nan=False)
    except (TypeError, ValueError):  # a container that JSON cannot hold, in a user's own event
        text = json.dumps({name: str(value) for name, value in values.items()})
    return text.encode() + b"\n"


def _plain(value: Any) -> Any:
    """Return a value that JSON can hold: errors as text, infinity and NaN as null."""
    if isinstance(value, BaseException):
        return text_of(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
