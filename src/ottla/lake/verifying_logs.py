"""Verifies the receipts of an archive against the logs on the brokers.

A lake and a reader come in; findings go out. A topic that is gone or was created again is a finding, and the others are
still compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ottla.errors import BrokerError, OffsetsLost
from ottla.fetch.reader import Reader
from ottla.lake.findings import Checked, Finding
from ottla.lake.lake import Lake
from ottla.model import Receipt, TopicPartition


def verify_brokers(lake: Lake, reader: Reader, checked: Checked, *, topics: Iterable[str] = ()) -> Iterator[Finding]:
    """Read every archived range from the brokers again and compare fingerprints. Yields what differs.

    `topics` restricts it to some topics. Raises the errors of `Reader` if brokers cannot be reached.
    """
    selected = frozenset(topics)
    last = lake.ledger.last()
    ids = {} if last is None else last.topics
    begins: dict[str, dict[TopicPartition, int] | None] = {}
    for entry in lake.ledger.entries():
        for receipt in entry.receipts:
            topic = receipt.range.topic
            if selected and topic not in selected:
                continue
            if topic not in begins:
                begins[topic] = None
                trouble = _trouble(reader, topic, ids.get(topic))
                if trouble is None:
                    begins[topic] = {**reader.offsets(topic, "earliest")}
                else:
                    yield trouble
            if (offsets := begins[topic]) is not None:
                yield from _range(reader, receipt, offsets.get(receipt.range.topic_partition), checked)


def _trouble(reader: Reader, topic: str, archived_id: str | None) -> Finding | None:
    """Return why the topic cannot be compared with the archive; None if it can."""
    try:
        reader.cluster.metadata([topic])  # refresh: cached metadata may be of the deleted topic
        description = reader.cluster.topic(topic)
    except BrokerError as error:
        return Finding(f"topic {topic}", f"cannot be compared: {error}", is_wrong=False)
    if archived_id is not None and description.id is not None and str(description.id) != archived_id:
        return Finding(
            f"topic {topic}",
            f"cannot be compared: it was deleted and created again (its id was {archived_id} and is {description.id})",
            is_wrong=False,
        )
    return None


def _range(reader: Reader, receipt: Receipt, begin: int | None, checked: Checked) -> Iterator[Finding]:
    span = receipt.range
    if begin is None:
        yield Finding(str(span), "the topic has no such partition any more", is_wrong=False)
        return
    if begin >= span.stop:
        yield Finding(str(span), "is not in the log any more: nothing to compare with", is_wrong=False)
        return
    if begin > span.start:
        yield Finding(str(span), f"only offsets from {begin} on are left in the log", is_wrong=False)
        return
    try:
        logged = reader.fingerprint(span)
    except OffsetsLost as error:
        yield Finding(str(span), f"cannot be read any more: {error.reason}", is_wrong=False)
        return
    except BrokerError as error:
        yield Finding(str(span), f"cannot be read any more: {error}", is_wrong=False)
        return
    checked.ranges += 1
    checked.records += logged.count
    if logged != receipt.fingerprint:
        yield Finding(str(span), f"the log has {logged}, the archive has {receipt.fingerprint}")
