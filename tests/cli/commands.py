"""Ways to run the command in tests: inside this process, or as a program of its own with real pipes and signals."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
from click.testing import CliRunner, Result

from ottla.cli import cli

SECONDS = 120.0
PROGRAM = (sys.executable, "-m", "ottla.cli")


def run(*arguments: str, env: dict[str, str] | None = None) -> Result:
    """Inside this process; it cannot read standard input, which has no file there."""
    return CliRunner().invoke(cli, arguments, env=env)


def run_program(*arguments: str, stdin: bytes = b"", env: dict[str, str] | None = None) -> Ended:
    """As a program of its own, to its end."""
    return subprocess.run(
        [*PROGRAM, *arguments], input=stdin, capture_output=True, timeout=SECONDS, env={**os.environ, **(env or {})}
    )


Ended = subprocess.CompletedProcess[bytes]


@contextlib.contextmanager
def program(*arguments: str, stderr: int = subprocess.PIPE) -> Iterator[subprocess.Popen[bytes]]:
    """A program that is spoken to while it runs; killed at the end of the block if it still does."""
    # Where the suite runs in the background, its children would inherit that Ctrl-C is ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        started = subprocess.Popen(
            [*PROGRAM, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, bufsize=0
        )
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        yield started
    finally:
        started.kill()
        started.wait(SECONDS)
        for stream in (started.stdin, started.stdout, started.stderr):
            if stream is not None:
                stream.close()


def write(path: Path, content: bytes) -> str:
    """A file for the command."""
    path.write_bytes(content)
    return str(path)


def read_back(bootstrap: str, topic: str, count: int, **settings: str) -> list[confluent_kafka.Message]:
    """All records of a topic, by a client that is not ours."""
    given = {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": "false", **settings}
    with contextlib.closing(confluent_kafka.Consumer(given)) as consumer:
        partitions = consumer.list_topics(topic, SECONDS).topics[topic].partitions
        consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in partitions])
        found: list[confluent_kafka.Message] = []
        while len(found) < count:
            messages = consumer.consume(min(count - len(found), 1_000_000), SECONDS)
            assert messages, f"{len(found)} of {count} records arrived"
            assert not [m.error() for m in messages if m.error()]
            found += messages
        assert not consumer.consume(1, 0.3), "more arrived than was sent"
    return found
