"""Commands that destroy something: they ask at a terminal, and want `--yes` where nobody can be asked."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import threading
from collections.abc import Iterator

import pytest
from tests.waiting import eventually

from ottla.admin.settings import keeps_less
from ottla.testing import FakeKafka

from .commands import PROGRAM, SECONDS, run

CTRL_C = b"\x03"


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka(topics={"clicks": 1}, auto_create=None) as kafka:
        yield kafka


def at_a_terminal(arguments: tuple[str, ...], typed: bytes, *, once: bytes) -> tuple[int, bytes]:
    """The exit code and what is seen, when `typed` is typed as soon as `once` is there."""
    ours, theirs = pty.openpty()
    seen = bytearray()

    def watch() -> None:
        with contextlib.suppress(OSError):
            while data := os.read(ours, 1000):
                seen.extend(data)

    watching = threading.Thread(target=watch)
    watching.start()
    with subprocess.Popen([*PROGRAM, *arguments], stdin=theirs, stdout=theirs, stderr=theirs) as started:
        os.close(theirs)
        eventually(lambda: once in seen, lambda: f"{once!r} in {bytes(seen)!r}", seconds=SECONDS)
        if typed == CTRL_C:
            started.send_signal(signal.SIGINT)  # it is not the terminal of its session, which would do that
        else:
            os.write(ours, typed)
        code = started.wait(SECONDS)
    watching.join(SECONDS)
    os.close(ours)
    return code, bytes(seen)


@pytest.mark.parametrize(("answer", "code", "left"), [(b"n\n", 1, True), (b"y\n", 0, False), (CTRL_C, 130, True)])
def test_a_person_is_asked(fake: FakeKafka, answer: bytes, code: int, left: bool) -> None:
    ended, seen = at_a_terminal(
        ("topics", "delete", "clicks", "--bootstrap", fake.bootstrap), answer, once=b"this deletes clicks"
    )
    assert (ended, "clicks" in fake.topics) == (code, left), seen
    assert (b"nothing was changed" in seen) == (answer == b"n\n")


def test_a_script_says_yes(fake: FakeKafka) -> None:
    where = ("--bootstrap", fake.bootstrap)
    refused = run("topics", "delete", "clicks", *where)
    assert refused.exit_code == 2
    assert "this deletes clicks" in refused.stderr
    assert "pass --yes to confirm, or --dry-run to look first" in refused.stderr
    looked = run("topics", "delete", "clicks", "--dry-run", *where)
    assert looked.exit_code == 0
    assert looked.stdout.startswith("would delete clicks")
    assert "clicks" in fake.topics
    would = json.loads(run("topics", "delete", "clicks", "--dry-run", "--json", *where).stdout)
    assert would == {"deleted": False, "topics": [{"name": "clicks", "records_estimate": 0}]}
    assert run("topics", "delete", "clicks", "--yes", *where).stdout == "deleted clicks\n"
    assert "clicks" not in fake.topics


@pytest.mark.parametrize(
    ("name", "before", "after", "less"),
    [
        ("retention.ms", "1000", "999", True),
        ("retention.ms", "-1", "999", True),
        ("retention.ms", "999", "-1", False),
        ("retention.ms", "999", "1000", False),
        ("retention.bytes", "-1", "1", True),
        ("retention.bytes", "5", None, True),
        ("cleanup.policy", "delete", "compact", True),
        ("cleanup.policy", "delete", "compact,delete", True),
        ("cleanup.policy", "compact,delete", "compact", False),
        ("max.message.bytes", "5", "1", False),
    ],
)
def test_what_may_delete_records(name: str, before: str, after: str | None, less: bool) -> None:
    assert keeps_less(name, before, after) is less


def test_no_live_line_is_drawn_over_what_is_typed(fake: FakeKafka) -> None:
    arguments = ("produce", "clicks", "--bootstrap", fake.bootstrap)
    ours, theirs = pty.openpty()
    seen = bytearray()
    with subprocess.Popen([*PROGRAM, *arguments], stdin=theirs, stdout=theirs, stderr=theirs) as started:
        os.close(theirs)
        os.write(ours, b"hello\n")
        eventually(lambda: fake.records("clicks", 0), "the record is there", seconds=SECONDS)
        os.write(ours, b"\x04")
        with contextlib.suppress(OSError):
            while data := os.read(ours, 1000):
                seen.extend(data)
        assert started.wait(SECONDS) == 0
    os.close(ours)
    assert b"\x1b[K" not in seen
    assert b"1 record" in seen
