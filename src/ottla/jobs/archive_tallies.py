"""`tally_archive`: counts an archive by time bucket from its receipts, and publishes the tallies.

The folder of an archive and the name of a tier come in. A receipt whose records are in one bucket says all that a tally
needs; of the others the files are read, and compared with the receipt. The ranges are those of the topic's log, so that
a range counts once, however often the archive was counted.
"""

from __future__ import annotations

import os
import time as clock
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from ottla.audit.coverage import CountedRange, assembled
from ottla.audit.notes import Notes
from ottla.errors import InputError, LakeError
from ottla.jobs.audit_notes import read_notes
from ottla.jobs.brokers import Brokers
from ottla.jobs.tallies import TallyReport, TallyRequest, check_buckets
from ottla.lake.lake import Lake
from ottla.lake.values import Entry
from ottla.model import Receipt, TopicPartition
from ottla.tally.publishing import ensure_topic, publish
from ottla.tally.ranges import RangeCounter, slices_of_receipt
from ottla.tally.values import AUDIT_TOPIC, DEFAULT_BUCKET_SECONDS, RangeTally

_ROWS = 65_536
_COLUMNS = ("key", "value", "headers", "timestamp")
_SIGN_SECONDS = 60.0
"""After how long the last tally of an archive is published again without a change: the archive is still counted."""
_TOGETHER = 200
"""How many tallies are published at once."""


def tally_archive(
    path: str | os.PathLike[str],
    *,
    tier: str,
    audit: Brokers | str,
    audit_topic: str = AUDIT_TOPIC,
    topics: Collection[str] | None = None,
    service: str = "-",
    bucket_seconds: int = DEFAULT_BUCKET_SECONDS,
    names: Mapping[str, str] | None = None,
    counted: Callable[[RangeTally], None] | None = None,
) -> TallyReport:
    """Count what is in an archive by time bucket, publish the tallies, and return what this call counted.

    A call continues where the last one stopped. `path` is the archive. `audit` is the cluster of the audit topic,
    `topics` limits what is counted, `names` maps topics to the names that other tiers have for them. The archive counts
    as complete up to the time of its last entry.

    Raises `LakeError` if the folder is no archive or its files are not those of the receipts, `ConfigError` for invalid
    arguments, `InputError` if a topic is not in the archive, and the errors of `Reader` if brokers cannot be reached.
    """
    request = TallyRequest(tier=tier, service=service, bucket_seconds=bucket_seconds, names=names or {})
    lake = Lake.open(path)
    target = audit if isinstance(audit, Brokers) else Brokers(bootstrap=audit, client_id="ottla-audit")
    entries = list(lake.ledger.entries(lake.ledger.published()))
    present = {topic for entry in entries for topic in entry.topics}
    missing = sorted(set(topics or ()) - present)
    if missing:
        raise InputError(f"the archive {lake.path} has no topic {', '.join(missing)}")
    wanted = present if topics is None else set(topics)
    report = TallyReport(tier)
    with target.cluster() as cluster:
        ensure_topic(cluster, audit_topic)
        named = [request.names.get(topic, topic) for topic in sorted(wanted)]
        known = read_notes(target, audit_topic, topics=named, tiers=[tier])
        check_buckets(known, request)
        waiting: list[RangeTally] = []
        for tally, is_new in _Tallies(lake, request, known).of(entries, wanted):
            waiting.append(tally)
            if is_new:
                report.tallies.append(tally)
            else:
                report.refreshed += 1
            if counted is not None:
                counted(tally)
            if len(waiting) >= _TOGETHER:
                publish(cluster, waiting, topic=audit_topic)
                waiting = []
        publish(cluster, waiting, topic=audit_topic)
    return report


@dataclass(frozen=True, slots=True)
class _Place:
    """What a range is known by."""

    topic: str
    topic_id: str
    partition: int
    start: int
    stop: int


class _Tallies:
    """Makes the tallies of receipts that have none."""

    def __init__(self, lake: Lake, request: TallyRequest, known: Notes) -> None:
        self._lake = lake
        self._request = request
        self._known: dict[_Place, CountedRange] = {}
        logs: dict[tuple[str, str, int], list[RangeTally]] = {}
        for note in known.tallies.values():
            if isinstance(note, RangeTally) and note.bucket_seconds == request.bucket_seconds:
                logs.setdefault((note.topic, note.topic_id, note.partition), []).append(note)
        for log, notes in logs.items():
            for found in assembled(notes):
                self._known[_Place(*log, found.start, found.stop)] = found

    def of(self, entries: list[Entry], topics: set[str]) -> Iterator[tuple[RangeTally, bool]]:
        """Yield tallies to publish, and whether they were counted now."""
        if not entries:
            return
        last = entries[-1]
        ends = dict(last.positions)
        numbers: dict[str, int] = {}
        for tp in ends:
            numbers[tp.topic] = max(numbers.get(tp.topic, 0), tp.partition + 1)
        for entry in entries:
            for receipt in entry.receipts:
                topic = receipt.range.topic
                if topic not in topics:
                    continue
                at_end = ends.get(TopicPartition(topic, receipt.range.partition)) == receipt.range.stop
                as_of = last.written if at_end else None
                found = self._find(entry, receipt)
                if found is None:
                    yield self._count(entry, receipt, as_of, numbers.get(topic, 0)), True
                elif as_of is not None and (
                    found.head.as_of != as_of or found.head.written < clock.time() - _SIGN_SECONDS
                ):
                    yield (
                        msgspec.structs.replace(
                            found.head, as_of=as_of, written=clock.time(), part=0, parts=1, buckets=found.buckets
                        ),
                        False,
                    )

    def _find(self, entry: Entry, receipt: Receipt) -> CountedRange | None:
        span = receipt.range
        name = self._request.names.get(span.topic, span.topic)
        return self._known.get(_Place(name, entry.topics.get(span.topic, ""), span.partition, span.start, span.stop))

    def _count(self, entry: Entry, receipt: Receipt, as_of: float | None, partitions: int) -> RangeTally:
        counter = RangeCounter(receipt.range, bucket_seconds=self._request.bucket_seconds)
        slices = slices_of_receipt(receipt, bucket_seconds=self._request.bucket_seconds)
        if slices is None:
            self._read_files(entry, receipt, counter)
        else:
            counter.add_slices(slices)
        topic = receipt.range.topic
        return counter.tally(
            self._request.tier,
            topic=self._request.names.get(topic, topic),
            topic_id=entry.topics.get(topic, ""),
            partitions=partitions,
            as_of=as_of,
            service=self._request.service,
        )

    def _read_files(self, entry: Entry, receipt: Receipt, counter: RangeCounter) -> None:
        """Read the files of a range. Raises `LakeError` if they do not have what the receipt says."""
        try:
            for file in entry.files:
                if file.range != receipt.range:
                    continue
                with pq.ParquetFile(self._lake.locate(file)) as opened:
                    for records in opened.iter_batches(_ROWS, columns=list(_COLUMNS)):
                        counter.add_records(records)
        except (OSError, pa.ArrowException) as error:
            raise LakeError(self._lake.path, f"a file of {receipt.range} cannot be read: {error}") from error
        count = sum(piece.count for piece in counter.slices)
        total = sum(piece.total or 0 for piece in counter.slices) % (1 << 128)
        expected = entry.fingerprint(receipt)
        if (count, total) != (expected.count, expected.total):
            raise LakeError(
                self._lake.path,
                f"the files of {receipt.range} do not have the records of its receipt: they have {count:,}, and it says"
                f" {expected.count:,}; verify the archive",
            )
