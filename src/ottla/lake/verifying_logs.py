"""Holds the receipts of an archive against the logs of the brokers: is that what was in the topics?

A lake and a reader come in, findings go out. A topic that is gone, or is another one by now, is told and does not keep
the others from being compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ottla.errors import BrokerError, OffsetsLost
from ottla.fetch.reader import Reader
from ottla.lake.findings import Checked, Finding
from ottla.lake.lake import Lake
from ottla.model import Receipt, TopicPartition


def verify_brokers(lake: Lake, reader: Reader, checked: Checked, *, topics: Iterable[str] = ()) -> Iterator[Finding]:
    """The receipts against the logs: every range is read again and its fingerprint compared."""
    wanted = frozenset(topics)
    last = lake.ledger.last()
    ids = {} if last is None else last.topics
    begins: dict[str, dict[TopicPartition, int] | None] = {}
    for entry in lake.ledger.entries():
        for receipt in entry.receipts:
            topic = receipt.range.topic
            if wanted and topic not in wanted:
                continue
            if topic not in begins:
                begins[topic] = None
                trouble = _trouble(reader, topic, ids.get(topic))
                if trouble is None:
                    begins[topic] = {**reader.offsets(topic, "earliest")}
                else:
                    yield trouble
            if (known := begins[topic]) is not None:
                yield from _range(reader, receipt, known.get(receipt.range.topic_partition), checked)


def _trouble(reader: Reader, topic: str, archived: str | None) -> Finding | None:
    """Why the topic cannot be compared with the archive, if it cannot."""
    try:
        reader.cluster.metadata([topic])  # what a reader remembers may be older
        found = reader.cluster.topic(topic)
    except BrokerError as error:
        return Finding(f"topic {topic}", f"cannot be compared: {error}", is_wrong=False)
    if archived is not None and found.id is not None and str(found.id) != archived:
        return Finding(
            f"topic {topic}",
            f"cannot be compared: it was deleted and created again (its id was {archived} and is {found.id})",
            is_wrong=False,
        )
    return None


def _range(reader: Reader, receipt: Receipt, begin: int | None, checked: Checked) -> Iterator[Finding]:
    one = receipt.range
    if begin is None:
        yield Finding(str(one), "the topic has no such partition any more", is_wrong=False)
        return
    if begin >= one.stop:
        yield Finding(str(one), "is not in the log any more: nothing to compare with", is_wrong=False)
        return
    if begin > one.start:
        yield Finding(str(one), f"only offsets from {begin} on are left in the log", is_wrong=False)
        return
    try:
        logged = reader.fingerprint(one)
    except OffsetsLost as error:
        yield Finding(str(one), f"cannot be read any more: {error.reason}", is_wrong=False)
        return
    except BrokerError as error:
        yield Finding(str(one), f"cannot be read any more: {error}", is_wrong=False)
        return
    checked.ranges += 1
    checked.records += logged.count
    if logged != receipt.fingerprint:
        yield Finding(str(one), f"the log has {logged}, the archive has {receipt.fingerprint}")
