"""The wire under hostile bytes: tens of thousands of inputs, each a clear error or a right answer.

The seeds are fixed, so that a failure here can be repeated; `python -m tests.fuzz` continues with millions of others. A
failing input is written to `fuzz-findings`; move it to `tests/fuzz/cases` with the fix.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import numpy as np
import pytest

from ottla.errors import WireError
from ottla.wire.batch import Batch, split
from ottla.wire.decode import Decoder
from ottla.wire.kernels import decoding

from . import answers, guided, layers, surface
from .drive import NOT_REACHED
from .hostile import BOMB_BYTES, hostile, record_with_headers
from .inputs import CASES, CORPUS
from .layers import Finding, Report, Task
from .worker import SKIPPED

SEED = 20260729
# The three kernel layers see the same inputs from the first on; the walls are cheapest.
INPUTS = {"walled": 10_000, "checked": 3_000, "python": 1_000, "surface": 3_000, "answers": 3_000}
GUIDED_RUNS = 5_000
ENOUGH_RUNS = 15_000
"""In which the search finds the bug that is planted for it."""
LIMIT_BYTES = 1 << 20

needs_atheris = pytest.mark.skipif(not guided.available(), reason="atheris has no wheel for this platform")


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory) -> guided.Search | None:
    """The coverage-guided search, which goes first so that every layer sees what it found."""
    if not guided.available():
        return None
    return guided.search(tmp_path_factory.mktemp("found"), runs=GUIDED_RUNS, seed=1)


@pytest.fixture(scope="module")
def reports(search: guided.Search | None) -> dict[str, Report]:
    """What each layer says, two at a time."""
    directories = (CORPUS, CASES) if search is None else (CORPUS, CASES, search.directory)
    tasks = [Task(layer=layer, seed=SEED, first=0, count=n, directories=directories) for layer, n in INPUTS.items()]
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(INPUTS, pool.map(layers.run, tasks), strict=True))


def assert_nothing_found(findings: Iterable[Finding]) -> None:
    listed = list(findings)
    kept = layers.keep(listed, Path("fuzz-findings")) if listed else []
    assert not listed, "\n".join(f"{finding}, kept in {path}" for finding, path in zip(listed, kept, strict=True))


def run_planted(layer: str, bug: tuple[str, str, str], directory: Path, count: int = 1500) -> list[str]:
    """What a layer finds in kernels with a bug in them."""
    source = layers.planted(directory, *bug)
    task = Task(layer=layer, seed=SEED, first=0, count=count, source=source)
    return [finding.reason for finding in layers.run(task).findings]


def test_every_way_of_running_the_kernels_gives_the_same_answer(reports: dict[str, Report]) -> None:
    kernels = [reports[layer] for layer in layers.KERNELS]
    assert_nothing_found(finding for report in kernels for finding in report.findings)
    assert_nothing_found(layers.differences(kernels))


@pytest.mark.parametrize("layer", layers.KERNELS)
def test_the_inputs_reach_every_answer_of_the_decoding_kernel(layer: str, reports: dict[str, Report]) -> None:
    assert set(reports[layer].codes.tolist()) >= {decoding.DONE, NOT_REACHED, *decoding.REASONS}


def test_decoding_raises_only_what_it_promises_and_stays_in_its_memory(reports: dict[str, Report]) -> None:
    report = reports["surface"]
    assert_nothing_found(report.findings)
    assert report.checksums.sum() > len(report.codes) / 4, "hardly any record was decoded: only refusals are tested"


def test_damaged_responses_raise_only_wire_errors(reports: dict[str, Report]) -> None:
    report = reports["answers"]
    assert_nothing_found(report.findings)
    assert np.count_nonzero(report.codes) > len(report.codes) / 20, "hardly any response was read"
    assert np.count_nonzero(report.codes == 0) > len(report.codes) / 4, "hardly any response was refused"


def test_responses_are_read_before_anything_is_done_to_them() -> None:
    made = [answers.answer(Random(number)) for number in range(3000)]
    by_hand = [data for data in made if data[0] in (answers.PRODUCE, answers.FETCH_12, answers.FETCH_13)]
    assert len(by_hand) > 1000
    assert [data for data in by_hand if not surface.answer(data)] == []


def test_tens_of_thousands_of_different_inputs_were_run(
    reports: dict[str, Report], search: guided.Search | None
) -> None:
    guided_runs = 0 if search is None else search.runs
    assert sum(len(reports[layer].codes) for layer in ("walled", "surface", "answers")) + guided_runs >= 20_000


@needs_atheris
def test_a_search_guided_by_coverage_breaks_nothing(search: guided.Search) -> None:
    assert search.broken is None, f"{search.broken!r}\n{search.log[-2000:]}"
    assert search.runs >= GUIDED_RUNS
    assert search.covered > 100


@pytest.mark.parametrize("name", sorted(file.name for file in CASES.glob("*.batches")))
def test_a_case_that_was_found_once_stays_solved(name: str, reports: dict[str, Report]) -> None:
    data = (CASES / name).read_bytes()
    for layer in (*layers.KERNELS, "surface"):
        report = reports[layer]
        index = report.task.inputs().kept.index(data)
        assert report.codes[index] != SKIPPED, f"{layer}: {[str(f) for f in report.findings if f.index == index]}"


@pytest.mark.parametrize("layer", ["surface", "answers"])
def test_a_number_and_a_seed_name_the_same_input_in_every_process(layer: str, reports: dict[str, Report]) -> None:
    inputs = reports[layer].task.inputs()
    here = zlib.crc32(b"".join(inputs[index] for index in range(1000)))
    script = (
        "import sys, zlib; from pathlib import Path; from tests.fuzz.worker import inputs_of; "
        "inputs = inputs_of(sys.argv[1], int(sys.argv[2]), [Path(name) for name in sys.argv[3:]]); "
        "print(zlib.crc32(b''.join(inputs[index] for index in range(1000))))"
    )
    arguments = [layer, str(SEED), *map(str, reports[layer].task.directories)]
    process = subprocess.run(
        [sys.executable, "-c", script, *arguments], cwd=layers.ROOT, capture_output=True, check=True
    )
    assert int(process.stdout) == here


ACCEPTED = {
    "nothing",
    "a-byte",
    "length-beyond-the-end",
    "control",
    "count-of-zero-with-records",
    "headers-many",
    "time-delta-extreme",
    "headers-many-not-text",
}


@pytest.mark.parametrize("name", sorted(hostile()))
def test_a_hostile_batch_is_refused_with_an_explanation(name: str) -> None:
    decoder = Decoder(max_batch_bytes=LIMIT_BYTES, chunk_bytes=LIMIT_BYTES)
    if name in ACCEPTED:
        assert sum(d.records.num_rows for d in decoder.decode(split(hostile()[name]))) in (0, 1)
        return
    with pytest.raises(WireError, match=r"\w+ \w+ \w+"):
        list(decoder.decode(split(hostile()[name])))


@pytest.mark.parametrize("name", sorted(name for name in hostile() if name.startswith("bomb")))
def test_a_decompression_bomb_stops_at_the_limit(name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(WireError, match=f"more than the limit of {LIMIT_BYTES:,} bytes"):
        list(Decoder(max_batch_bytes=LIMIT_BYTES).decode([Batch.parse(hostile()[name])]))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < BOMB_BYTES / 2


def test_a_record_may_have_a_million_headers() -> None:
    batch = Batch.parse(record_with_headers(1_000_000))
    (decoded,) = Decoder(["headers"], max_batch_bytes=4 << 20).decode([batch])
    assert len(decoded.records["headers"][0]) == 1_000_000


VALUE_UNCHECKED = (
    "kernels/decoding.py",
    "value_size < -1 or value_size > end - following",
    "value_size < -1 or value_size > end - following + 9",
)
ONE_BYTE_TOO_FAR = ("kernels/hashing.py", "if at + 8 <= end:", "if at + 7 <= end:")
BIT_OF_ANOTHER_ROW = ("kernels/decoding.py", "_clear(key.valid, row)", "_clear(key.valid, row + 8)")
NEGATIVE_SIZE = (
    "kernels/decoding.py",
    "size < 0 or size > end - following:\n            return HEADER_KEY_LENGTH",
    "size > end - following:\n            return HEADER_KEY_LENGTH",
)


@pytest.mark.parametrize("bug", [VALUE_UNCHECKED, BIT_OF_ANOTHER_ROW])
def test_a_bug_planted_in_the_kernels_is_found_in_their_python_bodies(
    bug: tuple[str, str, str], tmp_path: Path
) -> None:
    assert any(reason.startswith("IndexError") for reason in run_planted("python", bug, tmp_path))


def test_a_planted_read_of_one_byte_too_far_dies_at_the_wall(tmp_path: Path) -> None:
    assert "killed by SIGSEGV" in run_planted("walled", ONE_BYTE_TOO_FAR, tmp_path)


@needs_atheris
def test_a_planted_bug_is_found_by_coverage(tmp_path: Path) -> None:
    source = layers.planted(tmp_path, *NEGATIVE_SIZE)
    search = guided.search(tmp_path / "found", runs=ENOUGH_RUNS, seed=1, source=source)
    assert search.broken is not None
    assert "IndexError" in search.log


def long_run(keep: Path, *layer_names: str, source: Path = layers.SOURCE) -> subprocess.CompletedProcess[str]:
    options = ["--inputs", "1000", "--seed", "5", "--keep", str(keep), "--layers", *layer_names]
    return subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *options],
        cwd=layers.ROOT,
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_the_long_run_ends_by_itself_and_says_that_it_found_nothing(tmp_path: Path) -> None:
    done = long_run(tmp_path, "python", "answers")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing found" in done.stdout


def test_the_long_run_keeps_what_it_finds_and_fails(tmp_path: Path) -> None:
    done = long_run(tmp_path / "kept", "python", source=layers.planted(tmp_path, *BIT_OF_ANOTHER_ROW))
    assert done.returncode == 1, done.stdout + done.stderr
    kept = list((tmp_path / "kept").glob("python-*.batches"))
    assert kept
    assert all(str(file) in done.stdout for file in kept)
