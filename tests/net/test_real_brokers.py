"""Connections and cluster against three real brokers: every kind of security, kill -9, pipelining."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import ottla
from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.config import PLAINTEXT, OAuthBearer, Plain, Scram, Security, Tls, parse_bootstrap
from ottla.errors import AuthenticationFailed, NetworkError, NoBrokerReachable, SecurityMismatch
from ottla.net import Cluster, Connection, CoordinatorKind, Deadline, LeaderOf
from ottla.wire import messages

pytestmark = pytest.mark.broker

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER")


def brokers_seen(bootstrap: str | None, security: Security, seconds: float = 20) -> int:
    assert bootstrap is not None
    with Cluster(bootstrap, security=security) as cluster:
        return len(cluster.metadata(deadline=Deadline.after(seconds)).brokers)


def refusal(bootstrap: str | None, security: Security, seconds: float = 20) -> Exception:
    """Return the error, which must come well before the deadline."""
    started = time.monotonic()
    with pytest.raises((NetworkError, NoBrokerReachable)) as caught:
        brokers_seen(bootstrap, security, seconds)
    assert time.monotonic() - started < seconds + 1
    return caught.value


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_mechanism_is_let_in(kafka: LocalCluster, mechanism: Any) -> None:
    assert brokers_seen(kafka.secure_bootstrap, kafka.security("alice", mechanism=mechanism)) == 3


def test_a_client_certificate_is_asked_for(kafka: LocalCluster) -> None:
    assert brokers_seen(kafka.ssl_bootstrap, kafka.mutual_tls()) == 3
    error = refusal(kafka.ssl_bootstrap, Security(tls=kafka.security("alice").tls))
    assert "set Tls(cert_file=..., key_file=...)" in str(error)


@pytest.mark.parametrize(
    ("sasl", "reason"),
    [
        (Scram("alice", "wrong", "SCRAM-SHA-256"), "SCRAM-SHA-256 was refused"),
        (Scram("alice", "wrong", "SCRAM-SHA-512"), "SCRAM-SHA-512 was refused"),
        (Scram("nobody", "wrong"), "SCRAM-SHA-512 was refused"),
        (Plain("alice", "wrong"), "PLAIN was refused: .*Invalid username or password"),
        (OAuthBearer(lambda: "abc"), "OAUTHBEARER.*invalid_token"),
    ],
)
def test_wrong_credentials_are_refused_at_once(kafka: LocalCluster, sasl: Any, reason: str) -> None:
    tls = kafka.security("alice").tls
    error = refusal(kafka.secure_bootstrap, Security(tls=tls, sasl=sasl))
    assert isinstance(error, AuthenticationFailed)
    assert re.search(reason, str(error))


def test_an_untrusted_authority_is_refused_at_once(kafka: LocalCluster) -> None:
    error = refusal(kafka.secure_bootstrap, Security(tls=Tls(), sasl=Scram("alice", "x")))
    assert isinstance(error, SecurityMismatch)
    assert "Tls(ca_file=...)" in str(error)


def test_a_plaintext_client_on_a_tls_port_gets_an_error_that_says_so(kafka: LocalCluster) -> None:
    error = refusal(kafka.ssl_bootstrap, PLAINTEXT)
    assert isinstance(error, SecurityMismatch)
    assert "the port speaks TLS: set Security(tls=" in str(error)


def test_a_tls_client_on_a_plaintext_port_gets_an_error_that_says_so(kafka: LocalCluster) -> None:
    error = refusal(kafka.bootstrap, Security(tls=Tls()), seconds=2.0)
    assert isinstance(error, NoBrokerReachable)
    assert "is this a listener without TLS?" in str(error)


def test_sasl_where_there_is_none_and_none_where_it_is_asked_for(kafka: LocalCluster) -> None:
    error = refusal(kafka.bootstrap, Security(sasl=Plain("alice", "x")))
    assert isinstance(error, AuthenticationFailed)
    assert "does not use SASL" in str(error)
    error = refusal(kafka.secure_bootstrap, Security(tls=kafka.security("alice").tls), seconds=2)
    assert "does this listener ask for SASL?" in str(error)


@pytest.fixture(params=["plaintext", "secure"])
def connection(kafka: LocalCluster, request: pytest.FixtureRequest) -> Iterator[Connection]:
    secure = request.param == "secure"
    servers = kafka.secure_bootstrap if secure else kafka.bootstrap
    assert servers is not None
    security = kafka.security("alice") if secure else PLAINTEXT
    address = parse_bootstrap(servers)[0]
    deadline = Deadline.after(10)
    with Connection.open(address, security=security, client_id="t", deadline=deadline) as opened:
        yield opened


def test_200_requests_in_flight_from_8_threads_meet_their_answers(connection: Connection) -> None:
    version = connection.version(3)

    def ask(thread: int) -> None:
        names = [f"missing-{thread}-{number}" for number in range(25)]
        pendings = [connection.submit_message(_metadata(version, name), deadline=Deadline.after(30)) for name in names]
        for name, pending in zip(names, pendings, strict=True):
            assert [topic.name for topic in pending.response().topics] == [name]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(8)))
    assert connection.in_flight == 0


def _metadata(version: int, topic: str) -> Any:
    fields = {
        "topics": [{"name": topic, "topic_id": None}],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }
    return messages.compose(messages.request_type(3, version), fields)


def test_coordinators_of_groups_and_transactions_are_found(kafka: LocalCluster) -> None:
    with Cluster(kafka.bootstrap) as cluster:
        for kind in CoordinatorKind:
            broker = cluster.coordinator("some-key", kind)
            assert str(broker.address) in kafka.bootstrap


def test_a_killed_broker_does_not_stop_metadata_and_its_partitions_move(brokers_to_break: LocalCluster) -> None:
    with Admin(brokers_to_break.bootstrap) as admin:
        admin.create_topic("net-kill", partitions=6, replicas=3)
        cluster = admin.cluster
        victim = cluster.leader("net-kill", 0).id
        stop = threading.Event()
        answered: list[float] = []

        def keep_asking() -> None:
            while not stop.is_set():
                cluster.metadata(["net-kill"], deadline=Deadline.after(20))
                answered.append(time.monotonic())

        with ThreadPoolExecutor(4) as pool:
            asking = [pool.submit(keep_asking) for _ in range(4)]
            try:
                brokers_to_break.kill(victim)
                killed_at = time.monotonic()
                _await_new_leader(cluster, "net-kill", 0, victim)
                assert admin.list_offsets("net-kill").keys() == {("net-kill", index) for index in range(6)}
            finally:
                stop.set()
                brokers_to_break.restart(victim)
            for pending in asking:
                pending.result(30)
        assert max(answered) > killed_at
        admin.delete_topics("net-kill")


def _await_new_leader(cluster: Cluster, topic: str, partition: int, old: int) -> None:
    deadline = Deadline.after(30)
    attempts = cluster.attempts("waiting for a new leader", deadline)
    while cluster.leader(topic, partition, deadline=deadline).id == old:
        cluster.doubt(LeaderOf(topic, partition))
        attempts.failed(NetworkError(f"broker {old}", "still the leader"))


@pytest.mark.broker
def test_a_producer_with_a_wrong_password_gets_the_error_at_once(kafka: LocalCluster) -> None:
    wrong = Security(tls=kafka.security("alice").tls, sasl=Scram("alice", "guessed"))
    assert kafka.secure_bootstrap is not None
    with ottla.Producer(kafka.secure_bootstrap, security=wrong, delivery_timeout=300) as producer:
        error = producer.send("anything", b"never").exception(30)  # long before its deadline
        assert isinstance(error, ottla.NotDelivered)
        assert isinstance(error.cause, AuthenticationFailed)
        with pytest.raises(ottla.NotDelivered, match="invalid credentials"):
            producer.flush(30)
