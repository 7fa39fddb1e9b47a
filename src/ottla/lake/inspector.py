"""Looks into files that may be damaged, in a process of its own: some damage ends the process that parses it.

Paths go to the other process and small values come back, or `Unreadable`; it is started when it is first needed, and
again after it has died. This file is the other process, too (`python -m ottla.lake.inspector`): questions come as
lines of JSON on its standard input, answers go out the same way.
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
    """The file cannot be read; the text says why."""


class Inspector:
    """The other process, while the block runs."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def footer(self, path: str) -> Footer:
        """See `contents.footer`."""
        row = self._ask({"what": "footer", "path": path})
        return Footer(row["rows"], None if row["offsets"] is None else (row["offsets"][0], row["offsets"][1]))

    def content(self, paths: Sequence[str]) -> Content:
        """See `contents.content`."""
        return _content(self._ask({"what": "content", "paths": list(paths)}))

    def by_range(self, parts: Sequence[Part], ranges: Sequence[OffsetRange]) -> list[Content]:
        """See `contents.by_range`."""
        rows = [{"path": part.path, "values": dict(part.values)} for part in parts]
        spans = [[one.topic, one.partition, one.start, one.stop] for one in ranges]
        return [_content(row) for row in self._ask({"what": "by_range", "parts": rows, "ranges": spans})["found"]]

    def _ask(self, question: dict[str, Any]) -> Any:
        child = self._child = self._child or _start()
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(msgspec.json.encode(question) + b"\n")
            child.stdin.flush()
            line = child.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line.endswith(b"\n"):
            raise Unreadable(f"reading it ended the process that tried ({self._end()})")
        answer = msgspec.json.decode(line)
        if "error" in answer:
            raise Unreadable(answer["error"])
        return answer

    def _end(self) -> str:
        """Ends the process; returns how it had ended before."""
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
    # Ctrl-C is for the process that asks.
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "ottla.lake.inspector"],  # nothing is imported from the current folder
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _content(row: Mapping[str, Any]) -> Content:
    return Content(Fingerprint.parse(row["fingerprint"]), row["twice"], row["has_replaced_names"])


def _row(one: Content) -> dict[str, Any]:
    return {
        "fingerprint": str(one.fingerprint),
        "twice": one.twice,
        "has_replaced_names": one.has_replaced_names,
    }


def _footer_of(question: Mapping[str, Any]) -> dict[str, Any]:
    found = footer(question["path"])
    return {"rows": found.rows, "offsets": found.offsets}


def _content_of(question: Mapping[str, Any]) -> dict[str, Any]:
    return _row(content(question["paths"]))


def _by_range_of(question: Mapping[str, Any]) -> dict[str, Any]:
    parts = [Part(row["path"], row["values"]) for row in question["parts"]]
    return {"found": [_row(one) for one in by_range(parts, [OffsetRange(*span) for span in question["ranges"]])]}


_ANSWERS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "footer": _footer_of,
    "content": _content_of,
    "by_range": _by_range_of,
}


def serve(questions: BinaryIO, answers: BinaryIO) -> None:
    """Answers until there are no more questions. Whatever goes wrong with a file is an answer."""
    for line in questions:
        question = msgspec.json.decode(line)
        try:
            answer = _ANSWERS[question["what"]](question)
        except Exception as error:  # damage can raise anything
            answer = {"error": str(error) or type(error).__name__}
        answers.write(msgspec.json.encode(answer) + b"\n")
        answers.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
