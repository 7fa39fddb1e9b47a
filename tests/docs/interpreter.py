"""The Python of a page: one child process that runs block after block.

Blocks come in, what they print is in a file, and how each ended goes out. `driver.py` is the program of the child.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.docs.groups import Group
from tests.docs.pages import Program

_DRIVER = Path(__file__).with_name("driver.py")
_END_SECONDS = 60.0


class Interpreter:
    """The child process that runs the Python blocks of a page. `output` is the file that they print to."""

    def __init__(self, folder: Path, environment: Mapping[str, str], output: Path) -> None:
        self.output = output
        python = shutil.which("python", path=environment["PATH"])
        assert python is not None
        self._answers, theirs = os.pipe()
        with output.open("wb") as stream:
            process = subprocess.Popen(
                [python, "-u", str(_DRIVER), str(theirs)],
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=stream,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs],
                start_new_session=True,
            )
        os.close(theirs)
        self._group = Group(process)
        self._requests = process.stdin
        self._received = b""

    def start(self, page: str, program: Program) -> None:
        """Begin with a block."""
        assert self._requests is not None
        request = json.dumps({"page": page, "line": program.line, "source": program.source})
        with suppress(BrokenPipeError):
            self._requests.write(request.encode() + b"\n")
            self._requests.flush()

    def ended(self, seconds: float) -> str | None:
        """Wait a while for the end of the block, and return how it ended."""
        ready, _, _ = select.select([self._answers], [], [], seconds)
        if not ready:
            return None
        received = os.read(self._answers, 1 << 16)
        self._received += received
        if not received:
            return f"the interpreter itself, with exit code {self._group.leader.wait()}"
        if not self._received.endswith(b"\n"):
            return None
        answer, self._received = json.loads(self._received), b""
        return str(answer["ended"])

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self._group.interrupt()

    def close(self) -> int:
        """Let it end by itself, and return its exit code."""
        assert self._requests is not None
        self._requests.close()
        code = self._group.leader.wait(_END_SECONDS)
        self._group.note_left()
        return code

    def kill(self) -> None:
        """End it and what it has started, whatever it does."""
        self._group.kill()
        if self._requests is not None:
            with suppress(BrokenPipeError):
                self._requests.close()
        os.close(self._answers)
