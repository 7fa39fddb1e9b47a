"""Work in a forked child, and what it says."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import select
import signal
from collections.abc import Callable
from typing import TypeVar

import pytest

T = TypeVar("T")
SECONDS = 30.0


def by_fork(work: Callable[[], T]) -> T:
    """What the work returns in a child of `os.fork`, which must not hang."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, pickle.dumps(work()))
        finally:
            os._exit(0)
    os.close(writing)
    told = b""
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while True:
            if not select.select([pipe], [], [], SECONDS)[0]:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                pytest.fail(f"the child hangs for over {SECONDS} s")
            some = pipe.read(1 << 16)
            if not some:
                break
            told += some
    os.waitpid(pid, 0)
    assert told, "the child died"
    answers: T = pickle.loads(told)
    return answers


def by_multiprocessing(work: Callable[[], T]) -> T:
    """The same in a process of `multiprocessing`, which ends as Python does."""
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sending.send(work()))
    child.start()
    sending.close()
    try:
        if not receiving.poll(SECONDS):
            pytest.fail(f"the child hangs for over {SECONDS} s")
        told: T = receiving.recv()
        child.join(SECONDS)
        assert child.exitcode == 0, "the child does not end"
    finally:
        child.kill()
        child.join()
        receiving.close()
        child.close()
    return told


WAYS = [by_fork, by_multiprocessing]
