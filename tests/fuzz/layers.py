"""Starts the workers, detects what kills them, and compares the results of the layers for the same inputs.

Comes in: which layer is to run which inputs. Goes out: reports and findings; a finding carries its input and can be
kept as a case. Compiled kernels come from the cache of their package, and go there: its keys cover their sources and
whether bounds are checked, so one that was compiled for another test or for users is not compiled again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import ottla

from .inputs import CASES, CORPUS
from .worker import SKIPPED, Inputs, inputs_of

ROOT = Path(__file__).parents[2]
SOURCE = Path(ottla.__file__).parents[1]
KERNELS = ("walled", "checked", "python")
"""The layers that see the same inputs and must agree."""

_CACHE = "NUMBA_CACHE_DIR"
_MOST_DEATHS = 3
_STALL_SECONDS = 90.0
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Finding:
    """An input that did what no input may do."""

    layer: str
    index: int
    reason: str
    data: bytes

    def __str__(self) -> str:
        return f"{self.layer}, input {self.index} ({len(self.data)} bytes): {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A stretch of inputs for one layer. `source` is where the package `ottla` is taken from."""

    layer: str
    seed: int
    first: int
    count: int
    directories: tuple[Path, ...] = (CORPUS, CASES)
    source: Path = SOURCE

    def inputs(self) -> Inputs:
        return inputs_of(self.layer, self.seed, list(self.directories))


@dataclass(frozen=True, slots=True)
class Report:
    """What one layer says: a code and a checksum for each input, and its findings."""

    task: Task
    codes: npt.NDArray[np.uint8]
    checksums: npt.NDArray[np.uint32]
    findings: list[Finding]
    seconds: float


def environment(layer: str, source: Path) -> dict[str, str]:
    """The environment in which kernels are what the layer needs."""
    kept = {name: value for name, value in os.environ.items() if name == _CACHE or not name.startswith("NUMBA_")}
    kept["PYTHONPATH"] = str(source)
    if layer == "checked":
        kept["NUMBA_BOUNDSCHECK"] = "1"
    if layer == "python":
        kept["NUMBA_DISABLE_JIT"] = "1"
    return kept


def run(task: Task) -> Report:
    """Run a task to its end, going on behind an input that killed the worker."""
    began = time.monotonic()
    codes = np.full(task.count, SKIPPED, np.uint8)
    checksums = np.zeros(task.count, np.uint32)
    findings: list[Finding] = []
    rest = task
    for _ in range(_MOST_DEATHS):
        died_at = _run_once(rest, codes, checksums, findings)
        if died_at is None or died_at + 1 >= task.first + task.count:
            break
        rest = replace(task, first=died_at + 1, count=task.first + task.count - died_at - 1)
    return Report(task, codes, checksums, findings, time.monotonic() - began)


def _run_once(task: Task, codes: Any, checksums: Any, findings: list[Finding]) -> int | None:
    """Fill the end of `codes` and `checksums`; returns the input that killed the worker, if one did."""
    with tempfile.TemporaryDirectory(prefix="ottla-fuzz-") as name:
        out = Path(name)
        (out / "progress").write_bytes(task.first.to_bytes(8, "little"))
        reason = _watch(task, out)
        index = int.from_bytes((out / "progress").read_bytes(), "little")
        findings += _read_findings(task, out)
        if reason is not None:
            findings.append(Finding(task.layer, index, reason, task.inputs()[index]))
        done = index - task.first + (reason is None)
        part = slice(len(codes) - task.count, len(codes) - task.count + done)
        codes[part] = np.fromfile(out / "codes", np.uint8)[:done]
        checksums[part] = np.fromfile(out / "checksums", np.uint32)[:done]
        return None if reason is None else index


def _watch(task: Task, out: Path) -> str | None:
    """Wait for one worker; returns what it died of, None when it ended well."""
    numbers = ["--seed", str(task.seed), "--first", str(task.first), "--count", str(task.count)]
    places = [part for directory in task.directories for part in ("--inputs", str(directory))]
    command = [sys.executable, "-m", "tests.fuzz.worker", task.layer, *numbers, "--out", str(out), *places]
    with (out / "log").open("w+") as log:
        worker = subprocess.Popen(command, cwd=ROOT, env=environment(task.layer, task.source), stdout=log, stderr=log)
        try:
            stalled = _stalls(worker, out / "progress")
        finally:
            if worker.poll() is None:
                worker.kill()
            worker.wait()
        log.seek(0)
        text = log.read()
    if stalled:
        return f"no end after {_STALL_SECONDS:.0f} s"
    if worker.returncode < 0:
        return f"killed by {signal.Signals(-worker.returncode).name}"
    if worker.returncode > 0:
        raise RuntimeError(f"the worker of layer {task.layer} failed:\n{text[-3000:]}")
    return None


def _stalls(worker: subprocess.Popen[bytes], progress: Path) -> bool:
    seen, since = b"", time.monotonic()
    while True:
        try:
            worker.wait(_POLL_SECONDS)
            return False
        except subprocess.TimeoutExpired:
            now = progress.read_bytes()
            if now != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > _STALL_SECONDS:
                return True


def _read_findings(task: Task, out: Path) -> list[Finding]:
    file = out / "findings"
    if not file.exists():
        return []
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return [Finding(task.layer, row["index"], row["reason"], task.inputs()[row["index"]]) for row in rows]


def differences(reports: Sequence[Report]) -> list[Finding]:
    """Inputs on which two layers disagree; the reports must begin with the same input of the same seed."""
    findings = []
    for other in reports[1:]:
        reference = reports[0]
        both = min(len(reference.codes), len(other.codes))
        valid = (reference.codes[:both] != SKIPPED) & (other.codes[:both] != SKIPPED)
        same = (reference.codes[:both] == other.codes[:both]) & (reference.checksums[:both] == other.checksums[:both])
        for row in np.flatnonzero(valid & ~same)[:20]:
            index = reference.task.first + int(row)
            reason = (
                f"{reference.task.layer} answers {reference.codes[row]}/{reference.checksums[row]:#x}, "
                f"{other.task.layer} {other.codes[row]}/{other.checksums[row]:#x}"
            )
            findings.append(Finding(other.task.layer, index, reason, reference.task.inputs()[index]))
    return findings


def keep(findings: Iterable[Finding], directory: Path) -> list[Path]:
    """Write the inputs of findings where the next run will find them."""
    directory.mkdir(parents=True, exist_ok=True)
    kept = []
    for finding in findings:
        suffix = "answer" if finding.layer == "answers" else "batches"
        path = directory / f"{finding.layer}-{hashlib.sha256(finding.data).hexdigest()[:10]}.{suffix}"
        path.write_bytes(finding.data)
        kept.append(path)
    return kept


def planted(directory: Path, module: str, old: str, new: str) -> Path:
    """A copy of the package in which one piece of a module's text is another one: a bug to be found."""
    source = directory / "planted"
    shutil.copytree(SOURCE / "ottla", source / "ottla", ignore=shutil.ignore_patterns("__pycache__"))
    file = source / "ottla" / "wire" / module
    text = file.read_text()
    if text.count(old) != 1:
        raise ValueError(f"{old!r} is in {module} {text.count(old)} times, expected once")
    file.write_text(text.replace(old, new))
    return source
