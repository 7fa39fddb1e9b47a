"""Coverage-guided fuzzing of the kernels' Python bodies with atheris, in a process of its own.

Comes in: kept batches to begin with. Goes out: the inputs that reached something new, resealed, as `.batches` files;
an input that broke something is a finding. `search` starts it, `main` is what runs inside: numba is off there, so the
bodies that are instrumented are the ones that numba would compile.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

_MAX_BYTES = 512
_TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Search:
    """What a search did: how many inputs it ran, how much it covered, what is new, what it broke."""

    directory: Path
    runs: int
    covered: int
    new: list[Path]
    broken: bytes | None
    log: str


def available() -> bool:
    """Whether atheris is here: it has wheels for Linux only."""
    return importlib.util.find_spec("atheris") is not None


def search(out: Path, *, runs: int, seed: int, source: Path | None = None) -> Search:
    """Run `runs` inputs; what reaches something new is written to `out`."""
    from . import layers
    from .inputs import BatchInputs

    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ottla-guided-") as name:
        work = Path(name)
        seeds = work / "seeds"
        seeds.mkdir()
        for data in BatchInputs(seed).kept:
            if len(data) <= _MAX_BYTES:
                (seeds / hashlib.sha256(data).hexdigest()).write_bytes(data)
        (work / "new").mkdir()
        options = [f"-runs={runs}", f"-seed={seed}", f"-max_len={_MAX_BYTES}", "-timeout=20", "-print_final_stats=1"]
        command = [sys.executable, "-m", "tests.fuzz.guided", "--", *options, f"-artifact_prefix={work}/"]
        finished = subprocess.run(
            [*command, str(work / "new"), str(seeds)],
            cwd=layers.ROOT,
            env=layers.environment("python", source or layers.SOURCE),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
        log = finished.stdout + finished.stderr
        broken = next((file.read_bytes() for file in sorted(work.glob("*-*")) if file.is_file()), None)
        if finished.returncode and broken is None:
            raise RuntimeError(f"the guided search failed:\n{log[-3000:]}")
        new = [_kept(file.read_bytes(), out) for file in sorted((work / "new").iterdir())]
    covered = [int(number) for number in re.findall(r"cov: (\d+)", log)]
    ran = [int(number) for number in re.findall(r"number_of_executed_units: (\d+)", log)]
    resealed = None if broken is None else as_batch(broken)
    return Search(out, max(ran, default=0), max(covered, default=0), [p for p in new if p], resealed, log)


def _kept(data: bytes, out: Path) -> Path | None:
    batch = as_batch(data)
    if batch is None:
        return None
    path = out / f"{hashlib.sha256(batch).hexdigest()[:12]}.batches"
    path.write_bytes(batch)
    return path


def as_batch(data: bytes) -> bytes | None:
    """What the fuzzer's bytes stand for: one uncompressed batch whose length and checksum are right."""
    from ottla.wire.batch import HEADER, HEADER_BYTES

    from .grammar import sealed

    if len(data) <= HEADER_BYTES:
        return None
    fields = list(HEADER.unpack_from(data))
    fields[3], fields[5] = 2, fields[5] & ~7
    return sealed(fields, data[HEADER_BYTES:])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.guided", description="inside a guided search")
    parser.add_argument("options", nargs="*")
    options = parser.parse_args().options

    import atheris

    with atheris.instrument_imports(include=["ottla.wire.kernels"]):
        from ottla.wire.kernels import decoding  # noqa: F401  # before anything else brings it in uninstrumented
    from . import drive
    from .areas import Strict

    areas = Strict()

    def run_input(data: bytes) -> None:
        batch = as_batch(data)
        if batch is not None:
            drive.run(batch, areas, 0)

    atheris.Setup([sys.argv[0], *options], run_input)
    atheris.Fuzz()


def refresh(directory: Path, new_inputs: Path, most_files: int) -> int:
    """Take found inputs into the corpus, the smallest first, up to `most_files`; returns how many are there."""
    have = {file.name for file in directory.glob("*.batches")}
    for file in sorted(new_inputs.glob("*.batches"), key=lambda file: (file.stat().st_size, file.name)):
        if len(have) >= most_files:
            break
        if file.name not in have:
            shutil.copy(file, directory / file.name)
            have.add(file.name)
    return len(have)


if __name__ == "__main__":
    main()
