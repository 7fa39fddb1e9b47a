"""The long run: `python -m tests.fuzz --inputs 10000000`.

Goes block by block through new inputs: the compiled kernels against walls and with bounds checks on all of them, the
Python bodies, the surface and the responses on a share. Ends with exit code 1 when anything was found, and says where
the inputs were kept; put them into `tests/fuzz/cases` and every later run begins with them.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import guided, layers
from .inputs import CASES, CORPUS

_BLOCK = 500_000
# Of the inputs of a block, how many each layer gets; the first three see the same ones.
_SHARES = {"walled": 0.85, "checked": 0.85, "python": 0.05, "surface": 0.1, "answers": 0.05}
_ENOUGH_FINDINGS = 100
_GUIDED_RUNS = 400_000
_MOST_CORPUS_FILES = 250


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="fuzz the wire")
    parser.add_argument("--inputs", type=int, default=10_000_000, help="how many inputs (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="the same seed, the same inputs (default: the time)")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (default: %(default)s)")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-findings"), help="where to keep what broke something")
    parser.add_argument("--layers", nargs="+", choices=[*_SHARES, "guided"], default=[*_SHARES, "guided"])
    parser.add_argument("--grow-corpus", action="store_true", help="add what the guided search found to the corpus")
    args = parser.parse_args()
    seed = int(time.time()) if args.seed is None else args.seed
    print(f"fuzzing the wire: {args.inputs:,} inputs, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="ottla-fuzz-") as work:
        findings = _fuzz(args, seed, Path(work))
    if not findings:
        print("nothing found")
        return 0
    for path, finding in zip(layers.keep(findings, args.keep), findings, strict=True):
        print(f"FOUND {finding}\n      kept in {path}")
    return 1


def _fuzz(args: argparse.Namespace, seed: int, work: Path) -> list[layers.Finding]:
    began = time.monotonic()
    new_inputs = work / "found"
    new_inputs.mkdir()
    done, findings = _guided(seed, new_inputs, args.inputs) if "guided" in args.layers else (0, [])
    if args.grow_corpus:
        print(f"the corpus has {guided.refresh(CORPUS, new_inputs, _MOST_CORPUS_FILES)} files", flush=True)
    first = {layer: 0 for layer in _SHARES if layer in args.layers}
    while first and done < args.inputs and len(findings) < _ENOUGH_FINDINGS:
        tasks = _tasks(min(_BLOCK, args.inputs - done), seed, first, (CORPUS, CASES, new_inputs))
        with ThreadPoolExecutor(args.jobs) as pool:
            reports = list(pool.map(layers.run, tasks))
        findings += [finding for report in reports for finding in report.findings]
        kernels = [report for report in reports if report.task.layer in layers.KERNELS]
        findings += layers.differences(kernels)
        seen = max((len(report.codes) for report in kernels), default=0)
        own = {report.task.layer: len(report.codes) for report in reports if report.task.layer not in layers.KERNELS}
        done += seen + sum(own.values())
        first = {layer: start + own.get(layer, seen) for layer, start in first.items()}
        _show(done, args.inputs, time.monotonic() - began, len(findings))
    return findings


def _tasks(block: int, seed: int, first: dict[str, int], directories: tuple[Path, ...]) -> list[layers.Task]:
    """A block of different inputs, shared out over the layers that were asked for."""
    kernels = max((_SHARES[layer] for layer in first if layer in layers.KERNELS), default=0.0)
    whole = kernels + sum(_SHARES[layer] for layer in first if layer not in layers.KERNELS)
    return [
        layers.Task(
            layer=layer,
            seed=seed,
            first=start,
            count=math.ceil(block * _SHARES[layer] / whole),
            directories=directories,
        )
        for layer, start in first.items()
    ]


def _guided(seed: int, new_inputs: Path, total: int) -> tuple[int, list[layers.Finding]]:
    """The coverage-guided part, which goes first so that the other layers see what it found."""
    if not guided.available():
        print("no coverage-guided search: atheris has no wheel for this platform", flush=True)
        return 0, []
    search = guided.search(new_inputs, runs=min(_GUIDED_RUNS, total // 10), seed=seed % 2**31)
    print(f"guided by coverage: {search.runs:,} inputs, {len(search.new)} reached something new", flush=True)
    if search.broken is None:
        return search.runs, []
    return search.runs, [layers.Finding("guided", 0, search.log[-2000:], search.broken)]


def _show(done: int, total: int, seconds: float, findings: int) -> None:
    rate = done / seconds
    left = (total - done) / rate / 60
    print(f"{done:>12,} of {total:,}  {rate:7,.0f}/s  {max(left, 0):5.1f} min left  {findings} found", flush=True)


if __name__ == "__main__":
    sys.exit(main())
