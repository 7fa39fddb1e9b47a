"""`ClusterAccess`: one value for every client, which travels to other processes."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

import pytest

from ottla.admin import Admin
from ottla.config import Plain, Security, Timeouts
from ottla.errors import ConfigError
from ottla.fetch.reader import Reader
from ottla.jobs import Brokers
from ottla.net.access import ClusterAccess
from ottla.produce.producer import Producer
from ottla.testing import FakeKafka


@dataclass(frozen=True)
class FromElsewhere:
    """Security settings that are made where they are used."""

    user: str

    def security(self) -> Security:
        return Security(sasl=Plain(self.user, "secret"))


def test_clients_take_it_in_place_of_addresses(fake_kafka: FakeKafka) -> None:
    fake_kafka.create_topic("t")
    access = ClusterAccess(bootstrap=fake_kafka.bootstrap, client_id="me", timeouts=Timeouts(total=5.0))
    with Producer(access) as producer, Reader(access) as reader, Admin(access) as admin:
        producer.send("t", b"value").result(5)
        assert reader.count("t") == 1
        assert [topic.name for topic in admin.describe_topics("t")] == ["t"]
        assert {client.cluster.client_id for client in (reader, admin)} == {"me"}
        assert reader.cluster.timeouts.total == 5.0
        assert reader.cluster is not admin.cluster


def test_it_travels_with_security_that_is_made_where_it_is_used() -> None:
    access = ClusterAccess(bootstrap="localhost:1", security=FromElsewhere("alice"))
    arrived = pickle.loads(pickle.dumps(access))
    assert arrived == access
    assert arrived.resolved_security() == Security(sasl=Plain("alice", "secret"))
    assert "secret" not in repr(arrived)


def test_a_longer_timeout_keeps_everything_else() -> None:
    brokers = Brokers(bootstrap="localhost:1", client_id="job", timeouts=Timeouts(request=3.0))
    longer = brokers.with_timeout(600.0)
    assert isinstance(longer, Brokers)
    assert (longer.timeouts.total, longer.timeouts.request, longer.client_id) == (600.0, 3.0, "job")


def test_a_wrong_kind_of_security_is_refused() -> None:
    with pytest.raises(ConfigError, match="security must be a Security"):
        ClusterAccess(bootstrap="localhost:1", security="SASL_SSL").cluster()  # type: ignore[arg-type]
