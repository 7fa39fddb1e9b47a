"""`ottla audit tally`: counts topics by time bucket from their logs and publishes the tallies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ottla.cli.audit.connecting import brokers_at, session_of
from ottla.cli.audit.options import (
    audit_topic_option,
    bucket_option,
    engine_option,
    event_time_option,
    start_option,
    tier_option,
)
from ottla.cli.audit.report import print_report
from ottla.cli.completion.values import complete_groups
from ottla.cli.errors import UsageError
from ottla.cli.options.bootstrap import bootstrap_option
from ottla.cli.options.common import (
    isolation_option,
    json_option,
    master_option,
    max_batch_size_option,
    timeout_option,
    topics_argument,
    workers_option,
)
from ottla.cli.options.security import security_options
from ottla.cli.terminal.progress import LiveLine

if TYPE_CHECKING:
    from ottla.config import Security
    from ottla.model import TopicPartition


@click.command()
@topics_argument
@tier_option("Where in the pipeline these topics stand, such as edge or aggregate.", is_required=True)
@click.option("--service", default="-", show_default=True, metavar="NAME", help="What counts, for the tallies.")
@bucket_option
@event_time_option
@click.option("--headers-only", is_flag=True, help="Count by batch headers: quick, but without fingerprints.")
@start_option
@click.option(
    "--group",
    metavar="NAME",
    shell_complete=complete_groups,
    help="Count only what this consumer group has committed.",
)
@click.option("--fleet", metavar="GROUP", help="Count only what this fleet (of 'ottla work') has done.")
@click.option(
    "--spark-checkpoint",
    metavar="FOLDER",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Count only what a streaming query of Spark has committed there.",
)
@click.option("--as", "name", metavar="TOPIC", help="The name that other tiers have for this topic.")
@click.option(
    "--audit-bootstrap", metavar="HOST:PORT,...", help="Cluster of the audit topic.  [default: that of the topics]"
)
@audit_topic_option
@engine_option
@workers_option("--workers", "Ranges at a time.  [default: processors]")
@master_option
@isolation_option
@max_batch_size_option
@bootstrap_option
@security_options
@timeout_option("60s")
@json_option
def tally(
    topics: tuple[str, ...],
    *,
    tier: str,
    service: str,
    bucket_seconds: float,
    event_time: str,
    headers_only: bool,
    start: datetime | None,
    group: str | None,
    fleet: str | None,
    spark_checkpoint: Path | None,
    name: str | None,
    audit_bootstrap: str | None,
    audit_topic: str,
    engine: str,
    workers: int | None,
    master: str | None,
    isolation: str,
    max_batch_size: int,
    bootstrap: str,
    security: Security,
    timeout: float,
    as_json: bool,
) -> None:
    """Count what is in TOPICs now by time bucket, and publish the tallies.

    The next run continues where this one stopped, even if it was killed: every record counts once. Run it from time to
    time, for example every minute. The audit topic is created if it does not exist.

    \b
    Examples:
      ottla audit tally clicks --tier aggregate
      ottla audit tally clicks users --tier edge --audit-bootstrap hq:9092
      ottla audit tally clicks --tier billing --group billing
      ottla audit tally clicks --tier copies --spark-checkpoint /data/checkpoints/copies
      ottla audit tally clicks --tier edge --event-time json:created --bucket 1h
      ottla audit tally edge.clicks --as clicks --tier aggregate --headers-only
    """
    from ottla.engines.fleet.kafka_memory import memory_group
    from ottla.jobs.tallies import tally as run
    from ottla.tally.values import check_bucket

    if name is not None and len(topics) > 1:
        raise UsageError("--as needs a single TOPIC")
    if sum(given is not None for given in (group, fleet, spark_checkpoint)) > 1:
        raise UsageError("--group, --fleet and --spark-checkpoint are mutually exclusive")
    if fleet is not None:
        group = memory_group(fleet)
    positions = None if spark_checkpoint is None else _positions(spark_checkpoint)
    seconds = check_bucket(bucket_seconds)
    counted: Counter[str] = Counter()
    with session_of(engine, master, name="ottla audit tally") as session:
        source = brokers_at(
            bootstrap, security=security, timeout=timeout, isolation=isolation, max_batch_size=max_batch_size
        )
        audit = None if audit_bootstrap is None else brokers_at(audit_bootstrap, security=security, timeout=timeout)
        with LiveLine(lambda: f"{counted.total():,} records counted"):
            report = run(
                topics,
                brokers=source,
                tier=tier,
                service=service,
                audit=audit,
                audit_topic=audit_topic,
                bucket_seconds=seconds,
                time=event_time,
                headers_only=headers_only,
                start=start,
                group=group,
                positions=positions,
                names=None if name is None else {topics[0]: name},
                spark=session,
                workers=workers if session is None else None,
                counted=lambda found: counted.update({found.topic: found.records}),
            )
    print_report(report, topics, as_json=as_json)


def _positions(checkpoint: Path) -> Mapping[TopicPartition, int]:
    """Return where a streaming query is. Raises `InputError` if its checkpoint cannot be read or has nothing done."""
    from ottla.errors import InputError
    from ottla.operations.lag.sources import Checkpoint

    found = Checkpoint.at(checkpoint).read()
    if found.error is not None:
        raise InputError(found.error)
    if not found.committed:
        raise InputError(f"the query at {checkpoint} has committed no batch yet")
    return found.committed
