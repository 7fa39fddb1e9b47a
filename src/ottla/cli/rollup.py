"""`ottla rollup`: counts, sums and the like in windows of time, from topics to a topic or to files, by Spark.

It parses, checks everything that can be wrong before Spark is started, runs the query and reports what was read, made,
late and not to be read.
"""

from __future__ import annotations

import re
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.cli import Failure, Misuse
from ottla.cli.options.bootstrap import bootstrap_option
from ottla.cli.options.connecting import soon
from ottla.cli.options.general import json_option
from ottla.cli.options.reading import isolation_option, max_batch_bytes_option, parsed, topics_argument
from ottla.cli.options.security import security_options
from ottla.cli.terminal.interrupting import Interrupted, Interruption
from ottla.cli.terminal.progress import LiveLine
from ottla.cli.terminal.sparks import spark_session
from ottla.cli.values.json_text import json_text

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from ottla.config import Security
    from ottla.spark.rollups import Rollup

_LOOK_SECONDS = 0.3
_OURS = re.compile(r"ottla\.[\w.]+: (.*)")
_FIND_SECONDS = 20.0


def _checked(check: Any) -> Any:
    def one(text: str) -> str:
        check(text)
        return text

    return parsed(one)


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


def _duration(text: str) -> None:
    from ottla.spark.rollups import interval

    interval("it", text)


_FIELDS = {"metavar": "FIELD", "multiple": True, "callback": _checked(_field)}
_TIME = {"metavar": "DURATION", "callback": _checked(_duration)}


@click.command()
@topics_argument
@click.option("--window", required=True, **_TIME, help="How long a window is: 30s, 1m, 2h, 1d.")
@click.option("--slide", **_TIME, help="A window begins that often.  [default: one after the other]")
@click.option(
    "--by",
    "by",
    **_FIELDS,
    help="What to group by: json:FIELD, json:FIELD.FIELD, header:NAME, column:NAME, key, topic or partition."
    " Repeatable.",
)
@click.option("--count", is_flag=True, help="How many records. What is done if nothing else is asked.")
@click.option("--sum", "sums", **_FIELDS, help="The sum of a number. Repeatable, like the next three.")
@click.option("--min", "lowest", **_FIELDS, help="The smallest number.")
@click.option("--max", "highest", **_FIELDS, help="The largest number.")
@click.option("--distinct", **_FIELDS, help="How many different values, about (5 %).")
@click.option(
    "--event-time",
    default="record",
    show_default=True,
    metavar="WHERE",
    callback=_checked(_time_field),
    help="When it happened: json:FIELD, json:FIELD.FIELD, header:NAME, column:NAME or record.",
)
@click.option("--watermark", default="10m", show_default=True, **_TIME, help="How late data may come and still count.")
@click.option(
    "--to", required=True, metavar="TOPIC|PATH", callback=_checked(_to), help="A topic; with a slash, a folder."
)
@click.option(
    "--mode",
    type=click.Choice(["append", "update"]),
    default="append",
    show_default=True,
    help="Tell a window once, when it is complete; or whenever it changes.",
)
@click.option("--checkpoint", metavar="PATH", help="Where the query keeps its state.  [default with a folder: in it]")
@click.option("--follow", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.option("--until-now", is_flag=True, help="End where the topics end now. What is done without --follow.")
@click.option("--every", default="10s", show_default=True, **_TIME, help="With --follow: how often results are made.")
@click.option("--master", metavar="URL", help="Where Spark runs.  [default: local[*]]")
@click.option(
    "--tasks",
    type=click.IntRange(1, 10_000),
    default=8,
    show_default=True,
    help="Into how many parts the groups are divided. It stays as it is in the first run of a checkpoint.",
)
@isolation_option
@max_batch_bytes_option
@bootstrap_option
@security_options
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
    follow: bool,
    until_now: bool,
    every: str,
    master: str | None,
    tasks: int,
    isolation: str,
    max_batch_bytes: int,
    bootstrap: str,
    security: Security,
    as_json: bool,
    **asked: Any,
) -> None:
    """Add up TOPICs in windows of time: one small record for each window and group, exactly once.

    Results are JSON, keyed by what they are grouped by, or Parquet files. A window is told when data shows that it is
    over, and --watermark more: the last windows of a topic stay in the checkpoint until later records come, unless
    --mode update tells them at once. What cannot be read and what comes too late is counted and told.

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

    if follow and until_now:
        raise Misuse("--follow and --until-now exclude one another")
    what = _what(**asked)
    place = checkpoint or _beside(to)
    if is_folder(to) and mode == "update":
        raise Misuse("--mode update is for topics: files cannot be changed afterwards")
    options = {
        **kafka_options(bootstrap, security),
        "kafka.isolation.level": isolation.replace("-", "_"),
        "maxBatchBytes": str(max_batch_bytes),
    }
    _check_topics((*topics,) if is_folder(to) else (*topics, to), bootstrap, security)
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
                    checkpoint=place,
                    options=options,
                    mode=mode,
                    follow=every if follow else None,
                )
                with LiveLine(total.line):
                    _await(query, total, interruption)
            except PySparkException as error:
                raise Failure(_reason(str(error))) from error
    _report(total, to, as_json=as_json)
    context.exit(interruption.exit_code)


class _Total:
    """What the batches so far have told."""

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
        """Batches that are new."""
        from ottla.spark.rollups import counts_of

        for progress in query.recentProgress:
            if progress["batchId"] > self._last:
                self._last = progress["batchId"]
                self.batches += 1
                self.counts += counts_of(progress)

    def line(self) -> str:
        """How things stand."""
        found = self.counts
        extra = f", {found.unreadable:,} unreadable" if found.unreadable else ""
        extra += f", {found.late:,} late" if found.late else ""
        return f"{found.records:,} records read, {found.results:,} results{extra}, batch {self._last}"


def _what(*, sums: Any, lowest: Any, highest: Any, distinct: Any, count: bool, **rest: Any) -> Rollup:
    from ottla.spark.rollups import Rollup

    listed = [*(["count"] if count else [])]
    for kind, fields in (("sum", sums), ("min", lowest), ("max", highest), ("distinct", distinct)):
        listed += [f"{kind}({one})" for one in fields]
    return Rollup.of(measures=listed or ["count"], **rest)


def _beside(to: str) -> str:
    from ottla.spark.rollups import is_folder

    if not is_folder(to):
        raise Misuse("results to a topic need --checkpoint PATH: a folder in which the query keeps its state")
    return f"{to.rstrip('/')}/_rollup"


def _check_topics(names: tuple[str, ...], bootstrap: str, security: Security) -> None:
    from ottla.config import Timeouts
    from ottla.net import Cluster

    timeouts = Timeouts(total=_FIND_SECONDS)
    with Cluster(bootstrap, security=security, client_id="ottla-rollup", timeouts=timeouts, retry=soon()) as cluster:
        for name in names:
            cluster.topic(name)


def _await(query: StreamingQuery, total: _Total, interruption: Interruption) -> None:
    from pyspark.errors import StreamingQueryException

    try:
        while not interruption.wait(lambda: query.awaitTermination(_LOOK_SECONDS)):  # type: ignore[arg-type]
            total.add(query)
    except Interrupted:
        query.stop()
    except StreamingQueryException as error:
        raise Failure(_reason(str(error))) from error
    finally:
        total.add(query)


def _reason(text: str) -> str:
    """The sentence of ours in a report of Spark, whose other lines are about Java."""
    ours = _OURS.findall(text)
    return str(ours[-1]) if ours else text


def _report(total: _Total, to: str, *, as_json: bool) -> None:
    found = total.counts
    if as_json:
        click.echo(json_text({"to": to, **asdict(found), "batches": total.batches, "seconds": round(total.seconds, 3)}))
        return
    click.echo(f"{_records(found.records)} read, {found.results:,} results to {to} in {total.seconds:.1f} s")
    if found.unreadable:
        click.echo(
            f"{_records(found.unreadable)} without a JSON object, a time or a number that is needed: in no result"
        )
    if found.late:
        click.echo(f"{found.late:,} times a window and group came too late (--watermark): in no result")


def _records(count: int) -> str:
    return f"{count:,} record{'s' if count != 1 else ''}"


def kafka_options(bootstrap: str, security: Security) -> dict[str, str]:
    """What the data source is told of brokers and security, under the names of Kafka's Java clients."""
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
