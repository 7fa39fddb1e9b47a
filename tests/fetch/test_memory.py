"""The memory that reading a topic takes, measured by the kernel in a separate process."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from ottla.cluster import LocalCluster
from ottla.wire.warm import warm

from .conftest import NewTopic
from .numbered import write_numbered

pytestmark = [pytest.mark.broker, pytest.mark.slow]
BESIDE_BYTES = 150_000_000
"""Python, numpy, pyarrow and the rest take 89 MB; records that are handed out and free lists take 12 to 22 MB."""


@pytest.fixture(scope="module", autouse=True)
def _compiled_kernels() -> None:
    """Compile the kernels before: a process that has to compile them takes 100 MB more."""
    warm()


def measured(bootstrap: str, topic: str, *options: str) -> dict[str, Any]:
    """Run the program and return its figures."""
    program = [sys.executable, "-m", "tests.fetch.memory_program", bootstrap, topic, *options]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


@pytest.mark.parametrize(("count", "size", "codec"), [(300_000, 1000, "none"), (2_000_000, 100, "zstd")])
def test_a_large_topic_is_read_in_bounded_memory(
    kafka: LocalCluster, new_topic: NewTopic, count: int, size: int, codec: str
) -> None:
    topic = new_topic(2, replicas=1)
    write_numbered(kafka.bootstrap, topic, count, size=size, codec=codec)
    for memory_bytes in (64 << 20, 8 << 20):
        figures = measured(kafka.bootstrap, topic, "--memory-bytes", str(memory_bytes))
        assert figures["rows"] == count
        assert figures["peak"] < memory_bytes + BESIDE_BYTES, figures
    counted = measured(kafka.bootstrap, topic, "--way", "count", "--memory-bytes", str(memory_bytes))
    assert counted["rows"] == count
    assert counted["peak"] < figures["peak"], "no record is decoded"
