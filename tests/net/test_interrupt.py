"""Closing a client does not wait for connections that are being opened."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from ottla.cluster.process import wait_until
from ottla.config import Address, Plain, Security, Tls
from ottla.errors import ConnectionLost, OttlaError
from ottla.net import Cluster, Deadline, transport
from ottla.net.interrupt import Interrupt
from ottla.net.metadata import Broker
from ottla.net.targets import AnyBroker

from .servers import Peer, api_versions, serving
from .test_connection import answers, broker, silence


@contextlib.contextmanager
def black_hole() -> Iterator[Address]:
    """A listener whose backlog is full: further attempts to connect get no answer at all."""
    with socket.socket() as server, contextlib.ExitStack() as fillers:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        address = Address("127.0.0.1", server.getsockname()[1])
        for _ in range(4):
            filler = fillers.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(address)
        yield address


def silent_after_versions(peer: Peer) -> None:
    peer.answer(peer.request(), api_versions(SaslHandshake=(0, 1), SaslAuthenticate=(0, 2)))
    silence(peer)


STAGES = {
    "TCP": (black_hole, Security()),
    "TLS": (lambda: serving(silence), Security(tls=Tls())),
    "versions": (lambda: serving(silence), Security()),
    "SASL": (lambda: serving(silent_after_versions), Security(sasl=Plain("u", "p"))),
}


def is_opening(cluster: Cluster) -> bool:
    return bool(cluster._pool._interrupt._stops)


def close_ends(cluster: Cluster, *calls: Callable[[], object]) -> None:
    """Closing ends all the calls, each in a thread of its own, long before their deadlines."""
    with ThreadPoolExecutor(len(calls)) as threads:
        waiting = [threads.submit(call) for call in calls]
        assert wait_until(lambda: is_opening(cluster), timeout=5)
        started = time.monotonic()
        cluster.close()
        for call in waiting:
            with pytest.raises(OttlaError, match="it was closed"):
                call.result(5)
        assert time.monotonic() - started < 3


@pytest.mark.parametrize("stage", STAGES)
def test_closing_ends_a_connection_that_is_being_opened(stage: str) -> None:
    listening, security = STAGES[stage]
    with listening() as address:
        cluster = Cluster([address], security=security)
        close_ends(cluster, lambda: cluster.connection(Broker(1, *address)))


@pytest.mark.parametrize("stage", STAGES)
def test_closing_ends_every_call_that_waits_for_a_connection(stage: str) -> None:
    listening, security = STAGES[stage]
    with listening() as address:
        cluster = Cluster([address], security=security)
        close_ends(
            cluster,
            cluster.metadata,
            cluster.metadata,
            lambda: cluster.topic("t"),
            lambda: cluster.call(AnyBroker(), lambda _: pytest.fail("nobody is there"), check=id, what="asking"),
        )


def test_closing_ends_the_lookup_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, release = threading.Event(), threading.Event()

    def hangs(address: Address) -> list[transport.IpAddress]:
        asked.set()
        release.wait(20)
        return []

    monkeypatch.setattr(transport, "_look_up", hangs)
    cluster = Cluster("broker.invalid:9092")
    try:
        close_ends(cluster, cluster.metadata)
        assert asked.is_set()
    finally:
        release.set()


@pytest.mark.parametrize("stage", STAGES)
def test_an_interrupted_connection_leaves_no_descriptor_behind(stage: str) -> None:
    listening, security = STAGES[stage]
    with listening() as address:
        before = len(os.listdir("/dev/fd"))
        cluster = Cluster([address], security=security)
        close_ends(cluster, lambda: cluster.connection(Broker(1, *address)))
        # The server has one more socket, for a connection that it accepted and has not closed yet.
        assert wait_until(lambda: len(os.listdir("/dev/fd")) <= before, timeout=5)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_that_closes_does_not_disturb_its_parent_that_connects() -> None:
    release = threading.Event()

    def late(peer: Peer) -> None:
        release.wait(20)
        broker(answers)(peer)

    with serving(late) as address, Cluster([address]) as cluster, ThreadPoolExecutor(1) as threads:
        looking = threads.submit(cluster.metadata)
        assert wait_until(lambda: is_opening(cluster), timeout=5)
        pid = os.fork()
        if pid == 0:
            cluster.close()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        release.set()
        assert looking.result(10).cluster_id == "1"


def test_errors_of_a_wait_that_was_not_interrupted_stay_the_same() -> None:
    with pytest.raises(TimeoutError), Interrupt().ends(lambda: None):
        raise TimeoutError


def test_after_an_interrupt_nothing_is_begun() -> None:
    interrupt, stopped = Interrupt(), []

    def is_shut_down() -> None:
        interrupt.happen()
        raise OSError("socket was shut down")

    with pytest.raises(ConnectionLost, match="it was closed"), interrupt.ends(lambda: stopped.append(1)):
        is_shut_down()
    assert stopped == [1]
    with pytest.raises(ConnectionLost), interrupt.ends(lambda: stopped.append(2)):
        pytest.fail("this block must not run")
    interrupt.happen()
    assert stopped == [1]


def test_a_deadline_still_ends_it_without_a_close() -> None:
    with black_hole() as address, Cluster([address]) as cluster, pytest.raises(OttlaError, match=r"no answer|answered"):
        cluster.connection(Broker(1, *address), deadline=Deadline.after(0.2))
