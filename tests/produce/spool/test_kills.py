"""kill -9, a full disk, an I/O error or a short write at every single file operation: every promise is kept."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library between Python and the system calls."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs Linux and a C compiler, for the library that fails system calls on demand")
    library = tmp_path_factory.mktemp("shim") / "shim.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, HERE / "shim.c", "-ldl"], check=True, timeout=60)
    return library


@pytest.mark.parametrize(
    ("every", "least"),
    [pytest.param(1, 100, marks=pytest.mark.long), (3, 25)],
    ids=["in every way", "in some ways"],
)
def test_every_file_operation_may_be_the_last_or_fail(shim: Path, quick: Path, every: int, least: int) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tests.produce.spool.kills", str(quick), str(every)],
        cwd=HERE.parents[2],
        env={**os.environ, "LD_PRELOAD": str(shim)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["wrong"] == []
    assert len(report["points"]) == 5
    assert min(report["points"].values()) > least
    assert {"create", "pwrite", "pwritev", "fdatasync", "fsync", "rename", "unlink", "fallocate"} <= report[
        "calls"
    ].keys()
