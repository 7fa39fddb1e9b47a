"""`ottla rollup`: counts and sums in windows of time, from topics to a topic or to files, with Spark.

The command checks everything before it starts Spark, runs the query and reports records, results, late and unreadable
data.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.completion.values import complete_topics
from ottla.cli.errors import CommandFailed, UsageError
from ottla.cli.options.bootstrap import bootstrap_option
from ottla.cli.options.common import (
    follow_option,
    isolation_option,
    json_option,
    master_option,
    max_batch_size_option,
    timeout_option,
    topics_argument,
)
from ottla.cli.options.connection import few_retries
from ottla.cli.options.old import old_flag
from ottla.cli.options.places import from_option, until_option
from ottla.cli.options.security import security_options
from ottla.cli.options.types import Duration, Integer, parsed
from ottla.cli.output.json_text import json_text
from ottla.cli.terminal.interruption import Interrupted, Interruption
from ottla.cli.terminal.progress import LiveLine
from ottla.cli.terminal.spark import spark_session
from ottla.cli.values.places import Kind, Place

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from ottla.config import Security
    from ottla.spark.rollups import Rollup

_POLL_SECONDS = 0.3
_OURS = re.compile(r"ottla\.[\w.]+: (.*)")


def _checked(check: Any) -> Any:
    def checked(text: str) -> str:
        check(text)
        return text

    return parsed(checked)


def _to(text: str) -> str:
    from ottla.produce.records import topic as check_topic
    from ottla.spark.rollups import is_folder

    if not is_folder(text):
        check_topic(text)
    return text


def _field(text: str) -> None:
    from ottla.spark.rollup_fields import field

    field(text)


def _time_field(text: str) -> None:
    from ottla.spark.rollup_fields import time_field

    time_field(text)


_FIELDS = {"metavar": "FIELD", "multiple": True, "callback": _checked(_field)}
_SHORTEST = Duration(0.001)


@click.command()
@topics_argument
@click.option("--window", type=_SHORTEST, required=True, help="Length of a window: 30s, 1m, 2h, 1d.")
@click.option("--slide", type=_SHORTEST, help="How often a window starts.  [default: --window]")
@click.option(
    "--by",
    "by",
    **_FIELDS,
    help="Group by json:FIELD, json:FIELD.FIELD, header:NAME, column:NAME, key, topic or partition. Repeatable.",
)
@click.option("--count", is_flag=True, help="Number of records. The default.")
@click.option("--sum", "sums", **_FIELDS, help="Sum of a number. Repeatable, like the next three.")
@click.option("--min", "lowest", **_FIELDS, help="Smallest number.")
@click.option("--max", "highest", **_FIELDS, help="Largest number.")
@click.option("--distinct", **_FIELDS, help="Approximate number of distinct values (5 %).")
@click.option(
    "--event-time",
    default="record",
    show_default=True,
    metavar="WHERE",
    callback=_checked(_time_field),
    help="Time of a record: json:FIELD, json:FIELD.FIELD, header:NAME, column:NAME or record.",
)
@click.option("--watermark", type=Duration(), default="10m", show_default=True, help="How late data may arrive.")
@click.option(
    "--to",
    required=True,
    metavar="TOPIC|PATH",
    callback=_checked(_to),
    shell_complete=complete_topics,
    help="Topic to write to; with a slash, a folder.",
)
@click.option(
    "--mode",
    type=click.Choice(["append", "update"]),
    default="append",
    show_default=True,
    help="Write a window once, when it is complete, or whenever it changes.",
)
@click.option(
    "--checkpoint", metavar="PATH", help="Folder for the state of the query.  [default: in the folder of --to]"
)
@from_option("Where to start with a new checkpoint")
@until_option(kinds=(Kind.LATEST,))
@old_flag("--until-now", "--until", "latest")
@follow_option
@click.option(
    "--every", type=_SHORTEST, default="10s", show_default=True, help="With --follow: how often to compute results."
)
@master_option
@click.option(
    "--tasks",
    type=Integer(1, 10_000),
    default=8,
    show_default=True,
    help="Number of Spark tasks for the groups; fixed by the first run of a checkpoint.",
)
@isolation_option
@max_batch_size_option
@bootstrap_option
@security_options
@timeout_option(note="Applies at the start.")
@json_option
@click.pass_context
def rollup(
    context: click.Context,
    /,
    topics: tuple[str, ...],
    *,
    to: str,
    mode: str,
    checkpoint: str | None,
    start: Place,
    stop: Place | None,
    follow: bool,
    every: float,
    master: str | None,
    tasks: int,
    isolation: str,
    max_batch_size: int,
    bootstrap: str,
    security: Security,
    timeout: float,
    as_json: bool,
    **measures: Any,
) -> None:
    """Aggregate TOPICs in windows of time: one small record for each window and group, exactly once.

    Results are JSON, keyed by their group, or Parquet files. A window is written when data shows that it ended at least
    --watermark ago: the last windows of a topic stay in the checkpoint until later records arrive, unless --mode update
    writes them at once. Unreadable and late records are counted and reported.

    \b
    Examples:
      ottla rollup clicks --window 1m --by json:user --count --to clicks-by-user --checkpoint /data/rollup
      ottla rollup orders --window 1h --slide 10m --by json:shop --sum json:amount --max json:amount \\
          --event-time json:ts --watermark 5m --to orders-by-shop --checkpoint /data/rollup --follow
      ottla rollup clicks --window 1d --distinct json:user --event-time json:ts --to /data/daily
    """
    from pyspark.errors import PySparkException

    from ottla.spark.rollups import is_folder
    from ottla.spark.rollups import rollup as start_rollup

    if follow and stop is not None:
        raise UsageError("--follow and --until are mutually exclusive")
    what = _what(**measures)
    state = checkpoint or _default_checkpoint(to)
    if is_folder(to) and mode == "update":
        raise UsageError("--mode update needs a topic: files cannot be changed afterwards")
    options = {
        **kafka_options(bootstrap, security),
        "kafka.isolation.level": isolation,
        "maxBatchBytes": str(max_batch_size),
    }
    targets = () if is_folder(to) else (to,)
    options |= _start_options(start, topics, targets, bootstrap, security, isolation=isolation, timeout=timeout)
    total = _Total()
    with Interruption() as interruption:
        settings = {"spark.log.level": "OFF", "spark.sql.shuffle.partitions": str(tasks)}
        with spark_session("ottla rollup", master, settings) as spark:
            try:
                query = start_rollup(
                    spark,
                    topics,
                    what=what,
                    to=to,
                    checkpoint=state,
                    options=options,
                    mode=mode,
                    follow=_milliseconds(every) if follow else None,
                )
                with LiveLine(total.line):
                    _await(query, total, interruption)
            except PySparkException as error:
                raise CommandFailed(_reason(str(error))) from error
    _report(total, to, as_json=as_json)
    context.exit(interruption.exit_code)


class _Total:
    """Counts of all batches so far."""

    def __init__(self) -> None:
        from ottla.spark.rollups import Counts

        self.counts = Counts()
        self.batches = 0
        self._last = -1
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def add(self, query: StreamingQuery) -> None:
        """Add batches that are new."""
        from ottla.spark.rollups import counts_of

        for progress in query.recentProgress:
            if progress["batchId"] > self._last:
                self._last = progress["batchId"]
                self.batches += 1
                self.counts += counts_of(progress)

    def line(self) -> str:
        """Return the progress as a line."""
        counts = self.counts
        extra = f", {counts.unreadable:,} unreadable" if counts.unreadable else ""
        extra += f", {counts.late:,} late" if counts.late else ""
        return f"{counts.records:,} records read, {counts.results:,} results{extra}, batch {self._last}"


def _what(
    *,
    sums: Any,
    lowest: Any,
    highest: Any,
    distinct: Any,
    count: bool,
    window: float,
    slide: float | None,
    watermark: float,
    **rest: Any,
) -> Rollup:
    from ottla.spark.rollups import Rollup

    measures = [*(["count"] if count else [])]
    for kind, fields in (("sum", sums), ("min", lowest), ("max", highest), ("distinct", distinct)):
        measures += [f"{kind}({field})" for field in fields]
    return Rollup.of(
        measures=measures or ["count"],
        window=_milliseconds(window),
        slide=None if slide is None else _milliseconds(slide),
        watermark=_milliseconds(watermark),
        **rest,
    )


def _milliseconds(seconds: float) -> str:
    """Return a duration as Spark writes it."""
    return f"{round(seconds * 1000)} milliseconds"


def _default_checkpoint(to: str) -> str:
    from ottla.spark.rollups import is_folder

    if not is_folder(to):
        raise UsageError("--checkpoint PATH is required for results to a topic: a folder for the state of the query")
    return f"{to.rstrip('/')}/_rollup"


def _start_options(
    start: Place,
    topics: tuple[str, ...],
    targets: Collection[str],
    bootstrap: str,
    security: Security,
    *,
    isolation: str,
    timeout: float,
) -> dict[str, str]:
    """Return where the source starts, as its options. Raises an error if a topic does not exist."""
    from ottla.cli.ranges import ReadPlan
    from ottla.config import Timeouts
    from ottla.fetch.reader import Reader
    from ottla.net import Cluster

    timeouts = Timeouts(total=timeout)
    with Cluster(
        bootstrap, security=security, client_id="ottla-rollup", timeouts=timeouts, retry=few_retries()
    ) as cluster:
        for name in (*topics, *targets):
            cluster.topic(name)
        if isinstance(start, str):
            return {"startingOffsets": start}
        with Reader(cluster, isolation=isolation) as reader:
            ranges = ReadPlan(topics=topics, start=start, timeout=timeout).ranges(reader)
    offsets: dict[str, dict[str, int]] = {}
    for unread in ranges:
        offsets.setdefault(unread.topic, {})[str(unread.partition)] = unread.start
    return {"startingOffsets": json.dumps(offsets)}


def _await(query: StreamingQuery, total: _Total, interruption: Interruption) -> None:
    from pyspark.errors import StreamingQueryException

    try:
        while not interruption.wait(lambda: query.awaitTermination(_POLL_SECONDS)):  # type: ignore[arg-type]
            total.add(query)
    except Interrupted:
        query.stop()
    except StreamingQueryException as error:
        raise CommandFailed(_reason(str(error))) from error
    finally:
        total.add(query)


def _reason(text: str) -> str:
    """Return our own message from a Spark error, whose other lines are about Java."""
    ours = _OURS.findall(text)
    return str(ours[-1]) if ours else text


def _report(total: _Total, to: str, *, as_json: bool) -> None:
    counts = total.counts
    if as_json:
        click.echo(
            json_text({"to": to, **asdict(counts), "batches": total.batches, "seconds": round(total.seconds, 3)})
        )
        return
    click.echo(f"{_records(counts.records)} read, {counts.results:,} results to {to} in {total.seconds:.1f} s")
    if counts.unreadable:
        click.echo(f"{_records(counts.unreadable)} skipped: no JSON object, or a time or number is missing")
    if counts.late:
        click.echo(f"{counts.late:,} late windows skipped: older than --watermark")


def _records(count: int) -> str:
    return f"{count:,} record{'s' if count != 1 else ''}"


def kafka_options(bootstrap: str, security: Security) -> dict[str, str]:
    """Return the options of the data source for brokers and security, with the names of Kafka's Java clients."""
    from ottla.config import Plain, Scram

    options = {"kafka.bootstrap.servers": bootstrap, "kafka.security.protocol": security.protocol}
    tls, sasl = security.tls, security.sasl
    if tls is not None:
        if tls.ca_file is not None:
            options |= {
                "kafka.ssl.truststore.type": "PEM",
                "kafka.ssl.truststore.location": str(Path(tls.ca_file).resolve()),
            }
        if tls.cert_file is not None:
            options["kafka.ssl.keystore.type"] = "PEM"
            options["kafka.ssl.keystore.certificate.chain"] = Path(tls.cert_file).read_text()
            options["kafka.ssl.keystore.key"] = Path(tls.key_file or tls.cert_file).read_text()
        if tls.key_password is not None:
            options["kafka.ssl.key.password"] = tls.key_password
    if isinstance(sasl, Plain | Scram):
        plain = isinstance(sasl, Plain)
        module = "plain.PlainLoginModule" if plain else "scram.ScramLoginModule"
        options["kafka.sasl.mechanism"] = "PLAIN" if isinstance(sasl, Plain) else sasl.mechanism
        options["kafka.sasl.jaas.config"] = (
            f"org.apache.kafka.common.security.{module} required"
            f' username="{_quoted(sasl.username)}" password="{_quoted(sasl.password)}";'
        )
    return options


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
