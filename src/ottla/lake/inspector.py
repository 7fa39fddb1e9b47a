"""Reads files that may be damaged in a separate process, because some damage crashes the process that parses it.

Paths go to the other process; small values come back, or `Unreadable`. The process starts when it is first needed, and
again after a crash. This module is also its program (`python -m ottla.lake.inspector`): requests arrive as lines of
JSON on standard input, responses leave as lines on standard output.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, BinaryIO, Self

import msgspec

from ottla.lake.contents import Content, Footer, Part, by_range, content, footer
from ottla.model import Fingerprint, OffsetRange


class Unreadable(Exception):
    """A file cannot be read; the text says why."""


class Inspector:
    """The client of the other process. Leaving the block ends the process."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def footer(self, path: str) -> Footer:
        """Run `contents.footer` in the other process. Raises `Unreadable` if the file is damaged."""
        row = self._ask({"what": "footer", "path": path})
        return Footer(row["rows"], None if row["offsets"] is None else (row["offsets"][0], row["offsets"][1]))

    def content(self, paths: Sequence[str]) -> Content:
        """Run `contents.content` in the other process. Raises `Unreadable` if a file is damaged."""
        return _content(self._ask({"what": "content", "paths": list(paths)}))

    def by_range(self, parts: Sequence[Part], ranges: Sequence[OffsetRange]) -> list[Content]:
        """Run `contents.by_range` in the other process. Raises `Unreadable` if a file is damaged."""
        rows = [{"path": part.path, "values": dict(part.values)} for part in parts]
        spans = [[span.topic, span.partition, span.start, span.stop] for span in ranges]
        return [_content(row) for row in self._ask({"what": "by_range", "parts": rows, "ranges": spans})["found"]]

    def _ask(self, request: dict[str, Any]) -> Any:
        child = self._child = self._child or _start()
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(msgspec.json.encode(request) + b"\n")
            child.stdin.flush()
            line = child.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line.endswith(b"\n"):
            raise Unreadable(f"reading it crashed the process that tried ({self._end()})")
        response = msgspec.json.decode(line)
        if "error" in response:
            raise Unreadable(response["error"])
        return response

    def _end(self) -> str:
        """End the process. Return its signal or exit code, which says how it crashed if it had."""
        child, self._child = self._child, None
        if child is None:
            return ""
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.close()
        except BrokenPipeError:
            pass
        code = child.wait()
        child.stdout.close()
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _start() -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C in the terminal must reach only the parent.
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "ottla.lake.inspector"],  # -P: import nothing from the current folder
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _content(row: Mapping[str, Any]) -> Content:
    return Content(Fingerprint.parse(row["fingerprint"]), row["twice"], row["has_replaced_names"])


def _row(measured: Content) -> dict[str, Any]:
    return {
        "fingerprint": str(measured.fingerprint),
        "twice": measured.twice,
        "has_replaced_names": measured.has_replaced_names,
    }


def _footer_of(request: Mapping[str, Any]) -> dict[str, Any]:
    read = footer(request["path"])
    return {"rows": read.rows, "offsets": read.offsets}


def _content_of(request: Mapping[str, Any]) -> dict[str, Any]:
    return _row(content(request["paths"]))


def _by_range_of(request: Mapping[str, Any]) -> dict[str, Any]:
    parts = [Part(row["path"], row["values"]) for row in request["parts"]]
    ranges = [OffsetRange(*span) for span in request["ranges"]]
    return {"found": [_row(measured) for measured in by_range(parts, ranges)]}


_HANDLERS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "footer": _footer_of,
    "content": _content_of,
    "by_range": _by_range_of,
}


def serve(requests: BinaryIO, responses: BinaryIO) -> None:
    """Respond until the requests end. An error with a file is a response, too."""
    for line in requests:
        request = msgspec.json.decode(line)
        try:
            response = _HANDLERS[request["what"]](request)
        except Exception as error:  # damage can raise anything
            response = {"error": str(error) or type(error).__name__}
        responses.write(msgspec.json.encode(response) + b"\n")
        responses.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
