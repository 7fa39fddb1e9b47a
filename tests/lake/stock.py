"""Archives for tests: records of a range, staged as a task would stage them, without a broker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from ottla.jobs import event_time
from ottla.lake.contents import fingerprint
from ottla.lake.lake import Lake
from ottla.lake.layout import LakeSettings
from ottla.lake.values import Archived, WrittenBy
from ottla.lake.writer import FileOptions, RangeFiles, Times
from ottla.model import OffsetRange, Receipt
from ottla.wire.decode import SCHEMA

NOON = 1_767_268_800_000_000
"""2026-01-01T12:00:00Z in microseconds."""
BY = WrittenBy(engine="test", host="here")
SMALL = FileOptions(file_bytes=1 << 16, row_group_bytes=1 << 16)


def records(span: OffsetRange, times: Callable[[np.ndarray], np.ndarray] | None = None) -> pa.RecordBatch:
    """Return one record per offset: every seventh has a key, every third a header, every fifth a null value."""
    offsets = np.arange(span.start, span.stop)
    moments = NOON + offsets * 1_000_000 if times is None else times(offsets)
    return pa.record_batch(
        [
            pa.array([None if n % 7 else f"key-{n}".encode() for n in offsets], pa.binary()),
            pa.array([None if n % 5 == 4 else f"value {n} of {span.topic}".encode() for n in offsets], pa.binary()),
            pa.array([span.topic] * len(span), pa.string()),
            pa.array([span.partition] * len(span), pa.int32()),
            pa.array(offsets, pa.int64()),
            pa.array(moments, pa.int64()).view(pa.timestamp("us", tz="UTC")),
            pa.array([0] * len(span), pa.int32()),
            pa.array(
                [[{"key": "n", "value": str(n).encode()}] if n % 3 == 0 else None for n in offsets], SCHEMA.types[7]
            ),
        ],
        schema=SCHEMA,
    )


def stage(
    lake: Lake,
    span: OffsetRange,
    *,
    times: Callable[[np.ndarray], np.ndarray] | None = None,
    options: FileOptions = SMALL,
    run: str = "run",
) -> Archived:
    """Stage the range as a task would."""
    batch = records(span, times)
    with RangeFiles(lake.path, lake.settings, span, options=options, run=run) as files:
        if batch.num_rows:
            files.add(batch, _times(lake.settings, batch))
        staged = files.close(fingerprint(batch))
    moments = batch.column("timestamp").view(pa.int64()).to_numpy() / 1e6
    receipt = Receipt(
        range=span,
        fingerprint=fingerprint(batch),
        size_bytes=batch.nbytes,
        first_time=float(moments.min()) if len(moments) else None,
        last_time=float(moments.max()) if len(moments) else None,
        host="here",
        started=1.0,
        seconds=2.0,
    )
    return Archived(receipt, staged, files.untimed)


def _times(settings: LakeSettings, batch: pa.RecordBatch) -> Times | None:
    return event_time.parse(settings.event_time).reader()(batch) if settings.needs_time else None


def archive(lake: Lake, *ranges: OffsetRange) -> None:
    """Append an entry with these ranges."""
    lake.append([stage(lake, span) for span in ranges], by=BY)


def create(path: Path, **settings: object) -> Lake:
    """Create an archive."""
    return Lake.create(path / "archive", LakeSettings(**settings))  # type: ignore[arg-type]
