"""Takes the steps of one page as its reader would: in an empty folder, with a shell and one Python interpreter.

Steps come in; a `Failure` that names page and line goes out where a step does something else than its page says. What a
`sh` block exports, and where it changes to, holds for the blocks after it, as in a terminal.
"""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tests.docs.groups import Group
from tests.docs.interpreter import Interpreter
from tests.docs.matching import difference, matches
from tests.docs.pages import Commands, End, File, Output, Program, Script, Step

_LIMIT = 60.0
# Where a session of Spark starts.
_SPARK_LIMIT = 240.0
_POLL_SECONDS = 0.02
# When a command that runs until Ctrl-C is taken to have said what it has to say: it is quiet for these seconds after it
# has printed something, or has been busy with printing, or silent, for these.
_QUIET, _BUSY, _SILENT = 0.5, 5.0, 6.0
# The same, where its page says what it prints, or goes on while it runs: other programs use the processors, too.
_PATIENT_QUIET, _PATIENT_SILENT = 4.0, 30.0
_INTERRUPTED = (0, 130, -signal.SIGINT)
_NOTE = re.compile(r"^using local cluster '.*' at .*\n?", re.M)
_JAVA_NOTE = re.compile(r"^NOTE: Picked up JDK_JAVA_OPTIONS:.*\n", re.M)

_PRELUDE = """\
unset BASH_ENV
set -o pipefail
[ ! -e '{state}' ] || . '{state}'
trap 'echo "$LINENO" >"{failed}"' ERR
trap '{{ export -p; printf "cd %q\\n" "$PWD"; }} >"{state}"' EXIT
"""


class Failure(AssertionError):
    """A page says something that is not so."""


@dataclass(slots=True)
class _Staying:
    script: Script
    group: Group
    output: Path


class PageRun:
    """One reader of one page. `folder` is where the page's files are; `private` is for this class alone."""

    def __init__(self, page: str, folder: Path, *, private: Path, environment: Mapping[str, str]) -> None:
        self._page = page
        self._folder = folder
        self._private = private
        self._state = private / "state.sh"
        self._failed = private / "failed"
        prelude = private / "prelude.sh"
        prelude.write_text(_PRELUDE.format(state=self._state, failed=self._failed))
        self._environment = dict(environment)
        self._shell = {**environment, "BASH_ENV": str(prelude)}
        self._groups: list[Group] = []
        self._staying: list[_Staying] = []
        self._interpreter: Interpreter | None = None
        self._outputs = 0

    def __enter__(self) -> PageRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._end()
        finally:
            for group in self._groups:
                group.kill()
            if self._interpreter is not None:
                self._interpreter.kill()

    def take(self, step: Step) -> None:
        """Take one step, and compare what it prints. Raises `Failure`."""
        printed = self.printed_by(step)
        expected = None if isinstance(step, File) else step.output
        if expected is not None and not _is_expected(expected, printed):
            text = _without_notes(expected, printed)
            raise self._failure(expected.line, "it prints something else", difference(expected.text, text))

    def printed_by(self, step: Step) -> str:
        """Take one step, and return what it prints. Raises `Failure`."""
        if isinstance(step, File):
            path = self._folder / step.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(step.text)
            return ""
        return self._commands(step) if isinstance(step, Commands) else self._program(step)

    def _commands(self, block: Commands) -> str:
        printed = ""
        for script in block.scripts:
            is_last = script is block.scripts[-1]
            printed += self._script(script, printed, block.output if is_last else None)
        return printed

    def _script(self, script: Script, before: str, expected: Output | None) -> str:
        output = self._new_output()
        group = self._bash(script, output)
        if script.end is End.BY_ITSELF:
            self._wait(script, group, output)
            return _read(output)
        until = _Settled(
            lambda: _is_expected(expected, before + _read(output)),
            quiet=_QUIET if expected is None else _PATIENT_QUIET,
            silent=_SILENT if expected is None and script.end is End.CTRL_C else _PATIENT_SILENT,
        )
        while group.leader.poll() is None and not until.holds(_size(_read(output))):
            time.sleep(_POLL_SECONDS)
        if script.end is End.STAYS:
            if group.leader.returncode is not None:
                raise self._failure(script.line, f"it ended with {group.leader.returncode}", _read(output))
            self._staying.append(_Staying(script, group, output))
        else:
            self._interrupt(script, group, output)
        return _read(output)

    def _bash(self, script: Script, output: Path) -> Group:
        # Lines of the script have the numbers that they have on the page.
        file = self._private / f"script-{self._outputs}.sh"
        file.write_text("\n" * (script.line - 1) + script.text + "\n")
        self._failed.unlink(missing_ok=True)
        with output.open("wb") as stream:
            process = subprocess.Popen(
                ["bash", "-e", str(file)],
                cwd=self._folder,
                env=self._shell,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        group = Group(process)
        self._groups.append(group)
        return group

    def _wait(self, script: Script, group: Group, output: Path) -> None:
        limit = _limit(script.text)
        try:
            code = group.leader.wait(limit)
        except subprocess.TimeoutExpired:
            raise self._failure(script.line, f"it has not ended after {limit:.0f} s", _read(output)) from None
        group.note_left()
        if code != script.code:
            failed = self._failed.read_text().strip() if self._failed.exists() else ""
            line = int(failed) if failed.isdigit() else script.line
            raise self._failure(line, f"exit code {code}, not {script.code}", _read(output))

    def _interrupt(self, script: Script, group: Group, output: Path) -> None:
        group.interrupt()
        try:
            code = group.leader.wait(_LIMIT)
        except subprocess.TimeoutExpired:
            raise self._failure(script.line, f"Ctrl-C does not end it within {_LIMIT:.0f} s", _read(output)) from None
        group.note_left()
        if code not in _INTERRUPTED:
            raise self._failure(script.line, f"exit code {code} after Ctrl-C", _read(output))

    def _program(self, program: Program) -> str:
        if self._interpreter is None:
            self._interpreter = Interpreter(self._folder, self._environment, self._new_output())
        interpreter = self._interpreter
        before = interpreter.output.stat().st_size
        interpreter.start(self._page, program)
        limit = _limit(program.source)
        until = _Settled(
            lambda: _is_expected(program.output, _read(interpreter.output, before)),
            quiet=_QUIET if program.output is None else _PATIENT_QUIET,
            silent=_SILENT if program.output is None else _PATIENT_SILENT,
        )
        is_interrupted = False
        deadline = time.monotonic() + limit
        while (ended := interpreter.ended(_POLL_SECONDS)) is None:
            if program.is_endless and not is_interrupted and until.holds(_size(_read(interpreter.output, before))):
                is_interrupted = True
                interpreter.interrupt()
            if time.monotonic() > deadline:
                printed = _read(interpreter.output, before)
                raise self._failure(program.line, f"it has not ended after {limit:.0f} s", printed)
        printed = _read(interpreter.output, before)
        allowed = ("raised",) if program.raises else ("ok", "interrupted") if program.is_endless else ("ok",)
        if ended not in allowed:
            raise self._failure(program.line, f"it ended with: {ended}", printed)
        return printed

    def _end(self) -> None:
        """What stays running ends at Ctrl-C, the interpreter when there are no more blocks."""
        for staying in reversed(self._staying):
            if (code := staying.group.leader.poll()) is not None:
                raise self._failure(staying.script.line, f"it ended with {code}", _read(staying.output))
            self._interrupt(staying.script, staying.group, staying.output)
        if self._interpreter is not None:
            before = self._interpreter.output.stat().st_size
            if code := self._interpreter.close():
                printed = _read(self._interpreter.output, before)
                raise self._failure(1, f"Python ends with exit code {code}", printed)

    def _new_output(self) -> Path:
        self._outputs += 1
        path = self._private / f"output-{self._outputs}"
        path.touch()
        return path

    def _failure(self, line: int, what: str, printed: str) -> Failure:
        return Failure(f"{self._page}:{line}: {what}\n{printed}")


class _Settled:
    """When a command that ends at Ctrl-C has printed what it will print: what is expected, or something and no more."""

    def __init__(self, is_expected: Callable[[], bool], *, quiet: float, silent: float) -> None:
        self._began = self._grew = time.monotonic()
        self._first: float | None = None
        self._size = 0
        self._is_expected = is_expected
        self._quiet = quiet
        self._silent = silent

    def holds(self, size: int) -> bool:
        """Whether it has, when it has printed `size` characters."""
        now = time.monotonic()
        if size > self._size:
            self._size, self._grew = size, now
            self._first = self._first or now
            return self._is_expected()
        if self._first is None:
            return now - self._began > (_SILENT if self._is_expected() else self._silent)
        return now - self._grew > self._quiet or now - self._first > max(self._quiet, _BUSY)


def _is_expected(expected: Output | None, printed: str) -> bool:
    return expected is not None and matches(expected.text, _without_notes(expected, printed))


def _without_notes(expected: Output, printed: str) -> str:
    """Each command says on stderr which local cluster it uses. A page need not show that again and again."""
    return printed if _NOTE.search(expected.text) else _NOTE.sub("", printed)


def _limit(text: str) -> float:
    return _SPARK_LIMIT if "spark" in text.lower() else _LIMIT


def _size(printed: str) -> int:
    """How much of it is more than a note."""
    return len(_NOTE.sub("", printed))


def _read(path: Path, start: int = 0) -> str:
    return _JAVA_NOTE.sub("", path.read_bytes()[start:].decode(errors="replace"))
