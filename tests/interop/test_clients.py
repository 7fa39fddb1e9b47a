"""Every codec, both directions: we read what other Python clients write, and they read what we write."""

from __future__ import annotations

import pytest

from ottla.cluster import LocalCluster
from ottla.model import TopicPartition
from ottla.net.cluster import Cluster
from ottla.wire.batch import Codec

from .clients import CLIENTS, MATRIX
from .conftest import MakeTopic
from .ours import encoded, fetched, read, write
from .samples import CODECS, RECORDS, UNUSUAL

pytestmark = [pytest.mark.broker, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(scope="module")
def written_by_us(cluster: Cluster, new_topic: MakeTopic) -> str:
    """A topic with a partition for each codec, all with the same records, in several batches."""
    topic = new_topic(partitions=len(CODECS))
    for partition, codec in enumerate(CODECS):
        batches = encoded(UNUSUAL, codec, in_one_batch=100)
        assert write(cluster, TopicPartition(topic, partition), batches) == [0, 100, 200, 300]
    return topic


@pytest.mark.parametrize(("client", "codec"), MATRIX)
def test_other_clients_read_what_we_wrote(kafka: LocalCluster, written_by_us: str, client: str, codec: str) -> None:
    _, client_reads = CLIENTS[client]
    tp = TopicPartition(written_by_us, CODECS.index(codec))
    assert client_reads(kafka.bootstrap, tp, len(UNUSUAL)) == list(UNUSUAL)


@pytest.mark.parametrize("version", [12, 13])
@pytest.mark.parametrize("codec", CODECS)
def test_we_read_what_we_wrote(cluster: Cluster, written_by_us: str, codec: str, version: int) -> None:
    tp = TopicPartition(written_by_us, CODECS.index(codec))
    batches = list(fetched(cluster, tp, highest=version))
    assert {batch.header.codec for batch in batches} == {Codec[codec.upper()]}
    assert read(batches) == list(UNUSUAL)


def test_we_read_from_the_middle(cluster: Cluster, written_by_us: str) -> None:
    tp = TopicPartition(written_by_us, 0)
    batches = list(fetched(cluster, tp, 250))
    assert batches[0].header.base_offset == 200
    assert read(batches) == list(UNUSUAL[200:])


@pytest.mark.parametrize(("client", "codec"), MATRIX)
def test_we_read_what_other_clients_wrote(
    kafka: LocalCluster, cluster: Cluster, written_by_others: dict[str, str], client: str, codec: str
) -> None:
    client_writes, _ = CLIENTS[client]
    tp = TopicPartition(written_by_others[client], CODECS.index(codec))
    client_writes(kafka.bootstrap, tp, codec, RECORDS)
    batches = list(fetched(cluster, tp))
    assert Codec[codec.upper()] in {batch.header.codec for batch in batches}
    assert read(batches) == list(RECORDS)


@pytest.fixture(scope="module")
def written_by_others(new_topic: MakeTopic) -> dict[str, str]:
    """A topic for each client, with an empty partition for each codec."""
    return {client: new_topic(partitions=len(CODECS)) for client in CLIENTS}
