"""One connection against servers that behave, and servers that do not."""

from __future__ import annotations

import os
import random
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from tests.interrupting import CtrlC, Interrupter

from ottla.config import PLAINTEXT, Address
from ottla.errors import (
    ConnectFailed,
    ConnectionLost,
    NetworkError,
    RequestTimedOut,
    SecurityMismatch,
    UnsupportedFormat,
    UsedAfterFork,
    WireError,
)
from ottla.net import transport
from ottla.net.connection import Buffer, Connection, Pending
from ottla.net.deadline import Deadline
from ottla.net.pool import Pool
from ottla.wire import messages

from .servers import API_VERSIONS, METADATA, Peer, Script, api_versions, frame, metadata_fields, response, serving

CLOSED = "closed by the broker"
# A socket that was in use when Ctrl-C came may be closed by the interpreter, which warns of that.
_INTERRUPTED_SOCKETS = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)


def connect(address: Address, seconds: float = 5.0) -> Connection:
    return Connection.open(address, security=PLAINTEXT, client_id="test", deadline=Deadline.after(seconds))


def question(version: int = 12) -> Any:
    fields = {
        "topics": (),
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
        "include_cluster_authorized_operations": False,
    }
    return messages.compose(messages.request_type(METADATA, version), fields)


def ask(connection: Connection, seconds: float = 5.0) -> Any:
    return connection.request(question(), deadline=Deadline.after(seconds))


def broker(*then: Script) -> Script:
    """Do the handshake, then run the scripts."""

    def script(peer: Peer) -> None:
        peer.introduce()
        for step in then:
            step(peer)

    return script


def answers(peer: Peer) -> None:
    """Answer every Metadata request with its correlation id as the cluster id."""
    while True:
        asked = peer.request()
        peer.answer(asked, metadata_fields(str(asked[2])))


def silence(peer: Peer) -> None:
    peer.wait_until_closed()


def test_a_request_gets_its_answer() -> None:
    with serving(broker(answers)) as address, connect(address) as connection:
        assert connection.versions == {METADATA: (0, 12), API_VERSIONS: (0, 4)}
        assert connection.version(METADATA) == 12
        assert connection.version(METADATA, highest=9) == 9
        pending = connection.submit_message(question(), deadline=Deadline.after(5))
        assert pending.response().cluster_id == "1"
        assert pending.sent is not None
        assert pending.finished is not None
        assert pending.finished >= pending.sent - 0.001
        assert connection.in_flight == 0
    assert connection.closed


def test_a_version_that_only_one_side_speaks_is_named() -> None:
    def only_old(peer: Peer) -> None:
        peer.answer(peer.request(), api_versions(Metadata=(99, 100)))
        silence(peer)

    with serving(only_old) as address, connect(address) as connection:
        with pytest.raises(UnsupportedFormat, match=r"needs Metadata .* from 0 to \d+, .* offers versions 99 to 100"):
            connection.version(METADATA)
        with pytest.raises(UnsupportedFormat, match=r"ListOffsets .* does not offer it"):
            connection.version(2)


def test_a_broker_too_old_for_our_api_versions_is_asked_again_in_its_own() -> None:
    def old(peer: Peer) -> None:
        first = peer.request()
        body = struct.pack(">hihhh", 35, 1, API_VERSIONS, 0, 2)
        peer.send(frame(first[2], body))
        second = peer.request()
        assert second[:2] == (API_VERSIONS, 2)
        peer.answer(second, api_versions())
        answers(peer)

    with serving(old) as address, connect(address) as connection:
        assert connection.version(METADATA) == 12
        assert ask(connection).cluster_id == "2"


def test_every_one_of_many_pipelined_answers_meets_its_question() -> None:
    def in_bursts(peer: Peer) -> None:
        chance = random.Random(5)
        while True:
            waiting = [peer.request() for _ in range(25)]
            stream = b"".join(response(asked, metadata_fields(str(asked[2]))) for asked in waiting)
            while stream:
                cut = chance.randrange(1, 3000)
                peer.send(stream[:cut])
                stream = stream[cut:]

    with serving(broker(in_bursts)) as address, connect(address) as connection:

        def many(_: int) -> None:
            pendings = [connection.submit_message(question(), deadline=Deadline.after(20)) for _ in range(25)]
            random.shuffle(pendings)
            for pending in pendings:
                assert pending.response().cluster_id == str(pending.correlation_id)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(many, range(8)))
        assert connection.in_flight == 0


def test_a_hand_written_body_is_sent_from_many_buffers() -> None:
    body = messages.encode_body(question())
    received: list[int] = []

    def check(peer: Peer) -> None:
        size = struct.unpack(">i", peer.read(4))[0]
        received.append(size)
        data = peer.read(size)
        assert data.endswith(bytes(range(256)) * 4000)
        peer.send(frame(1, b"fine", tagged=True))
        silence(peer)

    parts: list[Buffer] = [body, b"", bytearray(b"x"), memoryview(bytes(range(256)) * 4000)]
    parts[1:1] = [b"y"] * 2000  # more than one sendmsg takes
    with serving(broker(check)) as address, connect(address) as connection:
        pending = connection.submit(METADATA, 12, parts, deadline=Deadline.after(5))
        assert bytes(pending.result()) == b"fine"
    assert received == [
        len(messages.request_header(3, 12, correlation_id=1, client_id="test")) + len(body) + 2001 + 256 * 4000
    ]


def test_a_large_answer_arrives_whole() -> None:
    payload = os.urandom(20_000_000)

    def large(peer: Peer) -> None:
        asked = peer.request()
        peer.send(frame(asked[2], payload, tagged=True))
        answers(peer)

    with serving(broker(large)) as address, connect(address) as connection:
        pending = connection.submit_message(question(), deadline=Deadline.after(10))
        assert pending.result() == payload
        assert ask(connection).cluster_id == "2"


def test_sending_while_the_broker_waits_for_us_to_read_does_not_deadlock() -> None:
    """A broker handles one request at a time: it reads no more before its last response is taken."""
    size = 8_000_000

    def one_at_a_time(peer: Peer) -> None:
        for _ in range(3):
            head = peer.read(4)
            data = peer.read(struct.unpack(">i", head)[0])
            correlation_id = struct.unpack_from(">i", data, 4)[0]
            peer.send(frame(correlation_id, bytes(size), tagged=True))
        silence(peer)

    with serving(broker(one_at_a_time)) as address, connect(address) as connection:
        body = [bytes(size)]
        pendings = [connection.submit(METADATA, 12, body, deadline=Deadline.after(20)) for _ in range(3)]
        assert [len(pending.result()) for pending in pendings] == [size] * 3


def test_a_request_without_answer_does_not_disturb_the_order() -> None:
    def quiet_first(peer: Peer) -> None:
        assert peer.request()[2] == 1
        answers(peer)

    with serving(broker(quiet_first)) as address, connect(address) as connection:
        connection.post(METADATA, 12, [messages.encode_body(question())], deadline=Deadline.after(5))
        assert connection.in_flight == 0
        assert ask(connection).cluster_id == "2"


def test_pump_serves_a_select_loop_and_calls_back() -> None:
    seen: list[int] = []

    def answered(pending: Pending) -> None:
        seen.append(pending.correlation_id)

    with serving(broker(answers)) as address, connect(address) as connection:
        assert connection.pump() == 0
        for _ in range(10):
            connection.submit_message(question(), deadline=Deadline.after(5), answered=answered)
        done = 0
        while done < 10:
            assert select.select([connection], [], [], 5)[0]
            done += connection.pump()
        assert seen == list(range(1, 11))
        connection.submit_message(question(), deadline=Deadline.after(5), answered=answered)
        assert connection.pump(Deadline.after(5)) == 1


def test_pump_ends_requests_whose_deadline_has_passed() -> None:
    failed: list[Pending] = []
    with serving(broker(silence)) as address, connect(address) as connection:
        connection.submit_message(question(), deadline=Deadline.after(0.05), answered=failed.append)
        started = time.monotonic()
        assert connection.pump(Deadline.after(10)) == 1
        assert time.monotonic() - started < 3
        assert connection.closed
        assert isinstance(failed[0].error, RequestTimedOut)
        assert connection.pump() == 0


def test_silence_ends_at_the_deadline_and_takes_the_connection_with_it() -> None:
    with serving(broker(silence)) as address, connect(address) as connection:
        patient = connection.submit_message(question(), deadline=Deadline.after(30))
        hasty = connection.submit_message(question(), deadline=Deadline.after(0.2))
        started = time.monotonic()
        with pytest.raises(RequestTimedOut, match=r"Metadata v12 was not answered within 0\.2 s"):
            hasty.result()
        assert 0.15 < time.monotonic() - started < 3
        with pytest.raises(ConnectionLost, match="Metadata v12 was not answered"):
            patient.result()
        with pytest.raises(ConnectionLost):
            ask(connection)


def test_a_waiting_thread_is_woken_when_another_ones_deadline_passes() -> None:
    with serving(broker(silence)) as address, connect(address) as connection:
        patient = connection.submit_message(question(), deadline=Deadline.after(30))
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(patient.result)
            with pytest.raises(RequestTimedOut):
                ask(connection, 0.2)
            with pytest.raises(ConnectionLost):
                waiting.result(5)


def test_a_drip_of_single_bytes_does_not_extend_the_deadline() -> None:
    def drips(peer: Peer) -> None:
        asked = peer.request()
        peer.drip(response(asked, metadata_fields("x" * 500)), seconds=0.01)

    with serving(broker(drips)) as address, connect(address) as connection:
        started = time.monotonic()
        with pytest.raises(RequestTimedOut):
            ask(connection, 0.3)
        assert time.monotonic() - started < 3


def test_a_late_answer_is_dropped() -> None:
    release = threading.Event()

    def late(peer: Peer) -> None:
        asked = peer.request()
        release.wait(5)
        peer.answer(asked, metadata_fields("late"))
        silence(peer)

    with serving(broker(late), broker(answers)) as address:
        with connect(address) as connection:
            with pytest.raises(RequestTimedOut):
                ask(connection, 0.1)
            release.set()
            with pytest.raises(ConnectionLost):
                ask(connection)
        with connect(address) as connection:
            assert ask(connection).cluster_id == "1"


def hang_up(peer: Peer) -> None:
    """End the stream in order. Closing alone would send a reset if a request is still unread."""
    peer.sock.shutdown(socket.SHUT_WR)
    silence(peer)


def half(peer: Peer) -> None:
    asked = peer.request()
    peer.send(response(asked, metadata_fields("x" * 100))[:60])
    hang_up(peer)


def wrong_id(peer: Peer) -> None:
    api_key, version, correlation_id = peer.request()
    peer.answer((api_key, version, correlation_id + 1), metadata_fields())
    silence(peer)


def unasked(peer: Peer) -> None:
    asked = peer.request()
    peer.send(response(asked, metadata_fields()) + frame(99, b"surprise"))
    silence(peer)


def cut(peer: Peer) -> None:
    peer.request()
    hang_up(peer)


def reset(peer: Peer) -> None:
    peer.request()
    peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def huge(peer: Peer) -> None:
    peer.request()
    peer.send(b"\x7f\xff\xff\xff")
    silence(peer)


def negative(peer: Peer) -> None:
    peer.request()
    peer.send(b"\xff\xff\xff\xff")
    silence(peer)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (half, "in the middle of a response"),
        (wrong_id, "correlation id 2, but 1 .Metadata v12. is due"),
        (cut, CLOSED),
        (reset, "reset|closed by the broker"),
        (huge, "claims a size of 2147483647 bytes"),
        (negative, "claims a size of -1 bytes"),
    ],
)
def test_a_broken_answer_ends_the_connection_with_its_reason(script: Script, reason: str) -> None:
    with serving(broker(script)) as address, connect(address) as connection:
        first = connection.submit_message(question(), deadline=Deadline.after(5))
        second = connection.submit_message(question(), deadline=Deadline.after(5))
        for pending in (first, second):
            with pytest.raises(ConnectionLost, match=reason) as caught:
                pending.result()
            assert caught.value.address == str(address)
        assert connection.closed


def test_an_answer_without_a_request_ends_the_connection() -> None:
    with serving(broker(unasked)) as address, connect(address) as connection:
        assert ask(connection).cluster_id == "c"
        assert connection.pump(Deadline.after(1)) == 0
        assert connection.closed
        with pytest.raises(ConnectionLost, match="no request is outstanding"):
            ask(connection)


def test_an_unreadable_body_is_a_wire_error_and_leaves_the_connection_in_step() -> None:
    def garbage(peer: Peer) -> None:
        asked = peer.request()
        peer.send(frame(asked[2], b"garbage", tagged=True))
        answers(peer)

    with serving(broker(garbage)) as address, connect(address) as connection:
        with pytest.raises(WireError, match="MetadataResponse v12"):
            ask(connection)
        assert ask(connection).cluster_id == "2"


def no_words(peer: Peer) -> None:
    peer.request()
    silence(peer)


def dripping_introduction(peer: Peer) -> None:
    peer.drip(response(peer.request(), api_versions()), seconds=0.05)


def http(peer: Peer) -> None:
    peer.request()
    peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    silence(peer)


def random_bytes(peer: Peer) -> None:
    peer.request()
    peer.send(b"\0\0\0\x10" + bytes(16))
    silence(peer)


def tls_alert(peer: Peer) -> None:
    peer.request()
    peer.send(b"\x15\x03\x03\x00\x02\x02\x50")
    silence(peer)


@pytest.mark.parametrize(
    ("script", "kind", "reason"),
    [
        (no_words, ConnectFailed, r"accepted, but ApiVersions v\d was not answered within 0\.4 s"),
        (dripping_introduction, ConnectFailed, "accepted, but ApiVersions"),
        (http, ConnectFailed, "the port speaks HTTP, it is not a Kafka broker$"),
        (random_bytes, ConnectFailed, "ApiVersionsResponse"),
        (cut, ConnectFailed, r"closed by the broker .* does the port speak TLS\?"),
        (tls_alert, SecurityMismatch, r"the port speaks TLS: set Security\(tls="),
        (huge, ConnectFailed, "not a Kafka broker"),
    ],
)
def test_what_is_not_a_broker_is_recognized(script: Script, kind: type[NetworkError], reason: str) -> None:
    with serving(script) as address:
        started = time.monotonic()
        with pytest.raises(kind, match=reason) as caught:
            connect(address, 0.4)
        assert type(caught.value) is kind
        assert time.monotonic() - started < 3.5


def test_a_port_where_nothing_listens_is_refused_by_name() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ConnectFailed, match=f"127.0.0.1:{port}: no TCP connection: connection refused"):
        connect(Address("127.0.0.1", port))


def test_every_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = (socket.AF_INET, server.getsockname())
    with serving(broker(answers)) as address:
        addresses = [closed, (socket.AF_INET, tuple(address))]
        monkeypatch.setattr(transport, "_look_up", lambda _: addresses)
        with connect(Address("localhost", address.port)) as connection:
            assert ask(connection).cluster_id == "1"
        addresses[1] = closed
        with pytest.raises(ConnectFailed, match=r"127\.0\.0\.1: connection refused; 127\.0\.0\.1: connection refused"):
            connect(Address("localhost", address.port))


def test_a_name_that_does_not_resolve_is_named() -> None:
    with pytest.raises(ConnectFailed, match=r"broker\.invalid:9092: the name"):
        connect(Address("broker.invalid", 9092), 5)
    with pytest.raises(ConnectFailed, match="does not resolve"):
        connect(Address("a" * 70 + ".invalid", 9092), 5)


def test_a_host_that_never_accepts_costs_no_more_than_the_deadline() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        address = Address("127.0.0.1", server.getsockname()[1])
        fillers = [socket.socket() for _ in range(4)]  # fill the backlog: further attempts get no answer
        try:
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(address)
            started = time.monotonic()
            with pytest.raises(ConnectFailed, match=r"no answer within 0\.3 s|was not answered within 0\.3 s"):
                connect(address, 0.3)
            assert time.monotonic() - started < 3
        finally:
            for filler in fillers:
                filler.close()


def test_closing_fails_what_is_in_flight_and_wakes_who_waits() -> None:
    with serving(broker(silence)) as address, connect(address) as connection:
        pending = connection.submit_message(question(), deadline=Deadline.after(30))
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(pending.result)
            connection.close()
            with pytest.raises(ConnectionLost, match="closed by this side"):
                waiting.result(5)
        assert connection.fileno() == -1
        connection.close()


def test_a_closed_connection_leaves_no_descriptor_behind() -> None:
    before = len(os.listdir("/dev/fd"))
    with serving(broker(cut)) as address:
        for _ in range(20):
            connection = connect(address)
            with pytest.raises(ConnectionLost):
                ask(connection)
    assert len(os.listdir("/dev/fd")) <= before


def in_a_child(action: Callable[[], None]) -> int:
    """Run `action` in a forked child and return its exit code."""
    pid = os.fork()
    if pid == 0:
        try:
            action()
        except UsedAfterFork:
            os._exit(0)
        except BaseException:
            os._exit(1)
        os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_gets_an_error_and_does_not_disturb_its_parent() -> None:
    with serving(broker(answers)) as address, connect(address) as connection:

        def use_and_close() -> None:
            try:
                ask(connection)
            finally:
                connection.close()

        assert in_a_child(use_and_close) == 0
        assert ask(connection).cluster_id == "1"


def test_an_interrupt_in_the_middle_of_receiving_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(broker(answers)) as address, connect(address) as connection:

        def interrupted(count: int) -> list[memoryview]:
            raise KeyboardInterrupt

        monkeypatch.setattr(connection._frames, "received", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ask(connection)
        assert connection.closed


@_INTERRUPTED_SOCKETS
def test_a_thread_beside_one_that_is_interrupted_anywhere_does_not_wait_in_vain() -> None:
    """Another thread's request ends at once, answered or with a lost connection, and not only at its deadline."""
    work = CtrlC(["ottla/net/pipeline.py", "ottla/net/traffic.py", "ottla/net/pending.py"])
    with serving(broker(answers)) as address, ThreadPoolExecutor(1) as threads:
        step, ended = 0, True
        while ended:
            step += 1
            with connect(address) as connection:
                _, ended = work.ends(partial(ask, connection), step)
                with suppress(ConnectionLost):
                    threads.submit(ask, connection, 30.0).result(5.0)
    assert step > 50


@_INTERRUPTED_SOCKETS
def test_an_interrupt_anywhere_in_connecting_leaves_the_place_to_others() -> None:
    work = CtrlC(["ottla/net/pool.py"])
    with serving(broker(answers)) as address, ThreadPoolExecutor(1) as threads:
        step, ended = 0, True
        while ended:
            step += 1
            pool = Pool(security=PLAINTEXT, client_id="test")
            _, ended = work.ends(partial(pool.get, "broker", address, deadline=Deadline.after(5)), step)
            threads.submit(pool.get, "broker", address, deadline=Deadline.after(2)).result()
            pool.close()
    assert step > 10


def _in_a_thread(threads: ThreadPoolExecutor, work: Callable[[], object]) -> None:
    threads.submit(work).result(20.0)


def test_a_signal_handler_that_waits_for_a_thread_which_connects_waits_not_in_vain() -> None:
    with serving(broker(answers)) as address, ThreadPoolExecutor(1) as threads:
        step, was_there = 0, True
        while was_there:
            step += 1
            pool = Pool(security=PLAINTEXT, client_id="test")
            elsewhere = partial(pool.get, "another key", address, deadline=Deadline.after(30))
            handler = Interrupter(partial(_in_a_thread, threads, elsewhere), "ottla/net/pool.py")
            was_there = handler.during(partial(pool.get, "broker", address, deadline=Deadline.after(30)), step)
            pool.close()
    assert step > 10


def test_a_request_that_is_queued_while_a_signal_handler_ends_the_line_ends_as_well() -> None:
    with serving(broker(answers)) as address:
        step, was_there = 0, True
        while was_there:
            step += 1
            with connect(address) as connection:
                files = [f"ottla/net/{name}.py" for name in ("traffic", "pending", "outbox")]
                handler = Interrupter(partial(connection._pipeline.traffic.lose, "by a handler"), *files)
                with suppress(ConnectionLost):
                    was_there = handler.during(partial(ask, connection), step)
    assert step > 20
