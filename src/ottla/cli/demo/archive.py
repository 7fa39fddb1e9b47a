"""The end of `ottla demo`: the topic archived by Spark's tasks, and the archive held against the brokers."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ottla.cli.errors import CommandFailed
from ottla.cli.terminal.spark import spark_session
from ottla.fetch.reader import Reader
from ottla.jobs.archives import archive
from ottla.lake.lake import Lake
from ottla.lake.verifying import Checked, verify_brokers, verify_files
from ottla.model import Fingerprint


def archive_and_verify(bootstrap: str, topic: str, folder: Path, say: Callable[[str], None]) -> Fingerprint:
    """What is in the archive then, after every receipt was compared with its files and with the log."""
    say(f"archiving topic {topic} as Parquet with Spark: its tasks fetch, decode and write")
    began = time.monotonic()
    with spark_session("ottla demo", "local[2]") as spark:
        say(f"  Spark {spark.version} up after {time.monotonic() - began:.1f} s")
        began = time.monotonic()
        done = archive(topic, folder, brokers=bootstrap, spark=spark)
        seconds = time.monotonic() - began
        size = f"{done.file_bytes / 1e6:,.1f} MB in {done.files} files"
        say(f"  {done.records:,} records in {seconds:.1f} s, the start of Python workers included: {size}")
        rows = spark.read.parquet(str(folder)).count()
    if rows != done.records:
        raise CommandFailed(f"the archive says {done.records:,} records, Spark reads {rows:,}")
    return _verified(bootstrap, Lake.open(folder), say)


def _verified(bootstrap: str, lake: Lake, say: Callable[[str], None]) -> Fingerprint:
    checked = Checked()
    with Reader(bootstrap) as reader:
        wrong = [*verify_files(lake, checked, deep=True), *verify_brokers(lake, reader, checked)]
    if wrong:
        raise CommandFailed(f"the archive is not as its receipts say: {wrong[0]}")
    receipts = [receipt for entry in lake.ledger.entries() for receipt in entry.receipts]
    say(f"  verified: {len(receipts)} receipts against {checked.files} files and against the log")
    return sum((receipt.fingerprint for receipt in receipts), Fingerprint())
