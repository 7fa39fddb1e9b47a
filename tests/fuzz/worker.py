"""Runs a stretch of inputs in a process of its own, which may die of one: `python -m tests.fuzz.worker --help`.

Comes in: a layer, a seed, the first input and how many. Goes out, in the directory given: an answer code and a
checksum for each input, what was found, and at any time the number of the input at hand, which outlives a crash.
"""

from __future__ import annotations

import argparse
import json
import mmap
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ottla.wire.kernels import decoding
from ottla.wire.kernels.calling import CHECKED, Kernel

from . import drive, surface
from .areas import Areas, Plain, Strict, Walled
from .inputs import CASES, CORPUS, AnswerInputs, BatchInputs

LAYERS = ("walled", "checked", "python", "surface", "answers")
SKIPPED = 254
"""The code of an input that was a finding: there is nothing to compare."""

_MOST_FINDINGS = 20
_ADDRESS_SPACE_BYTES = 768 << 20  # beyond what is mapped after the first inputs; zstd alone may take 128 MiB
_MOST_CPU_SECONDS = 8.0
_WARM_UP = 50

Inputs = BatchInputs | AnswerInputs
Check = Callable[[bytes, int], drive.Outcome]


def inputs_of(layer: str, seed: int, directories: list[Path]) -> Inputs:
    """The inputs that a layer sees; the three kernel layers see the same ones."""
    if layer == "answers":
        return AnswerInputs(seed, directories)
    return BatchInputs(seed, directories, compress=0.4 if layer == "surface" else 0.03)


def _on_kernel(areas: Areas) -> Check:
    return lambda data, number: drive.run(data, areas, number)


def _on_surface(data: bytes, number: int) -> drive.Outcome:
    return drive.Outcome(0, surface.decode(data))


def _on_answers(data: bytes, number: int) -> drive.Outcome:
    return drive.Outcome(int(surface.answer(data)), 0)


def _check_of(layer: str) -> Check:
    """The layer's way to run an input; refuses to pose as another one."""
    decode: Any = decoding.decode_records
    compiled = isinstance(decode, Kernel)
    if compiled == (layer == "python") or (layer == "checked") != CHECKED:
        raise SystemExit(f"the environment is not that of layer {layer}: see layers.environment")
    if layer == "surface":
        return _on_surface
    if layer == "answers":
        return _on_answers
    kinds: dict[str, Callable[[], Areas]] = {"walled": Walled, "checked": Plain, "python": Strict}
    return _on_kernel(kinds[layer]())


class _Journal:
    """What the parent reads, also after this process has died."""

    def __init__(self, directory: Path, count: int) -> None:
        self._findings = directory / "findings"
        with (directory / "progress").open("r+b") as file:
            self._progress = mmap.mmap(file.fileno(), 8)
        self.codes = np.memmap(directory / "codes", np.uint8, "w+", shape=(count,))
        self.checksums = np.memmap(directory / "checksums", np.uint32, "w+", shape=(count,))
        self.found = 0

    def at(self, index: int) -> None:
        self._progress[:] = index.to_bytes(8, "little")

    def finding(self, index: int, reason: str) -> None:
        self.found += 1
        with self._findings.open("a") as file:
            file.write(json.dumps({"index": index, "reason": reason}) + "\n")


def _bound_memory() -> None:
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    limit = mapped + _ADDRESS_SPACE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _run(check: Check, inputs: Inputs, journal: _Journal, first: int, count: int, bounded: bool) -> None:
    for i in range(count):
        index = first + i
        if bounded and i == _WARM_UP:
            _bound_memory()
        journal.at(index)
        data = inputs[index]
        began = time.process_time()
        try:
            outcome = check(data, index)
            journal.codes[i], journal.checksums[i] = outcome
            took = time.process_time() - began
            # The first input may have to compile the kernel.
            if bounded and i >= _WARM_UP and took > _MOST_CPU_SECONDS:
                journal.finding(index, f"took {took:.1f} s")
        except BaseException as error:  # also a panic of a Rust library, which is no Exception
            if isinstance(error, KeyboardInterrupt):
                raise
            journal.codes[i] = SKIPPED
            journal.finding(index, f"{type(error).__name__}: {error}")
            if journal.found >= _MOST_FINDINGS:
                return


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.worker", description=__doc__)
    parser.add_argument("layer", choices=LAYERS)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--first", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True, help="where the results go")
    parser.add_argument("--inputs", type=Path, action="append", help="directories of kept inputs")
    args = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    journal = _Journal(args.out, args.count)
    inputs = inputs_of(args.layer, args.seed, args.inputs or [CORPUS, CASES])
    bounded = args.layer == "surface" and Path("/proc/self/statm").exists()
    _run(_check_of(args.layer), inputs, journal, args.first, args.count, bounded)


if __name__ == "__main__":
    main()
