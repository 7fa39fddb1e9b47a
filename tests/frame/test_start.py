"""What a program imports for its first record: nothing that it does not use."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest

import ottla
from ottla.testing import FakeKafka

UNUSED = (
    "kio",
    "hypothesis",
    "asyncio",
    "concurrent",
    "email",
    "importlib.metadata",
    "ssl",
    "argparse",
    "lz4",
    "numba",
)

READS = """
import sys
from ottla import Reader
with Reader(sys.argv[1]) as reader:
    print(sum(batch.num_rows for batch in reader.read("clicks")))
print(" ".join(sys.modules), file=sys.stderr)
"""
SENDS = """
import sys
from ottla import Producer
with Producer(sys.argv[1]) as producer:
    print(producer.send("clicks", b"one").result(30.0).offset + 1)
print(" ".join(sys.modules), file=sys.stderr)
"""


@pytest.mark.parametrize("program", [READS, SENDS], ids=["reads", "sends"])
def test_the_first_record_needs_nothing_that_takes_long_to_import(program: str) -> None:
    with FakeKafka(topics={"clicks": 1}) as kafka:
        if program is READS:
            with ottla.Producer(kafka.bootstrap) as producer:
                producer.send("clicks", b"one").result(30.0)
        command = [sys.executable, "-c", program, kafka.bootstrap]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert run.stdout == "1\n"
    assert not set(run.stderr.split()).intersection(UNUSED)


def test_the_version_is_that_of_the_package() -> None:
    assert ottla.__version__ == metadata.version("ottla")
