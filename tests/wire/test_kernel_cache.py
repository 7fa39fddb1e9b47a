"""Compiled kernels are kept on disk, and never used once any part of their source has changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import ottla

RUN = "from ottla.wire.kernels.checksum import shift; print(shift(1, 5))"


def _kept(package: Path, cache: Path, **environment: str) -> int:
    """Compiled versions of a kernel that are on disk after using it."""
    env = {**os.environ, "PYTHONPATH": str(package), "NUMBA_CACHE_DIR": str(cache), **environment}
    subprocess.run([sys.executable, "-c", RUN], env=env, check=True, capture_output=True, timeout=120)
    return len(list(cache.rglob("checksum.shift*.nbc")))


def test_kernels_work_where_nothing_can_be_kept() -> None:
    """As in a container with a read-only file system and no home."""
    nowhere = "from numba.core import caching; caching.CacheImpl._locator_classes = []; "
    run = subprocess.run(
        [sys.executable, "-c", nowhere + RUN], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > 0


def test_a_change_in_a_part_or_in_the_checks_compiles_the_kernel_again(tmp_path: Path) -> None:
    source = Path(ottla.__file__).parent
    shutil.copytree(source, tmp_path / "ottla", ignore=shutil.ignore_patterns("__pycache__"))
    cache = tmp_path / "cache"
    assert _kept(tmp_path, cache) == 1
    assert _kept(tmp_path, cache) == 1
    with (tmp_path / "ottla/wire/kernels/varint.py").open("a") as part:
        part.write("# another file than the kernel's own\n")
    assert _kept(tmp_path, cache) == 2
    assert _kept(tmp_path, cache, NUMBA_BOUNDSCHECK="1") == 3
