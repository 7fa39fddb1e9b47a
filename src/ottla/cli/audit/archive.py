"""`ottla audit archive`: counts an archive by time bucket from its receipts and publishes the tallies."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import click

from ottla.cli.audit.connecting import brokers_at
from ottla.cli.audit.options import audit_topic_option, bucket_option, tier_option
from ottla.cli.audit.report import print_report
from ottla.cli.options.bootstrap import bootstrap_option
from ottla.cli.options.common import check_topic, json_option, timeout_option
from ottla.cli.options.security import security_options
from ottla.cli.options.types import parsed
from ottla.cli.terminal.progress import LiveLine

if TYPE_CHECKING:
    from ottla.config import Security


@click.command()
@click.argument("path")
@tier_option("Where in the pipeline the archive stands, such as archive.", is_required=True)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC",
    callback=parsed(check_topic),
    help="Only this topic. May be repeated.",
)
@click.option("--service", default="-", show_default=True, metavar="NAME", help="What counts, for the tallies.")
@bucket_option
@audit_topic_option
@bootstrap_option
@security_options
@timeout_option("60s")
@json_option
def archive(
    path: str,
    *,
    tier: str,
    topics: tuple[str, ...],
    service: str,
    bucket_seconds: float,
    audit_topic: str,
    bootstrap: str,
    security: Security,
    timeout: float,
    as_json: bool,
) -> None:
    """Count what is in an archive of 'ottla archive' by time bucket, and publish the tallies.

    Receipts of the archive say what is in its files; where a receipt has records of several buckets, the files are read
    and compared with it. The next run continues where this one stopped. --bootstrap is the cluster of the audit topic.

    \b
    Examples:
      ottla audit archive /data/clicks --tier archive
      ottla audit archive /data/lake --topic clicks --tier archive --bootstrap hq:9092
    """
    from ottla.jobs.archive_tallies import tally_archive
    from ottla.tally.values import check_bucket

    seconds = check_bucket(bucket_seconds)
    counted: Counter[str] = Counter()
    target = brokers_at(bootstrap, security=security, timeout=timeout)
    with LiveLine(lambda: f"{counted.total():,} records counted"):
        report = tally_archive(
            path,
            tier=tier,
            audit=target,
            audit_topic=audit_topic,
            topics=topics or None,
            service=service,
            bucket_seconds=seconds,
            counted=lambda found: counted.update({found.topic: found.records}),
        )
    print_report(report, topics, as_json=as_json)
