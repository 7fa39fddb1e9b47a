"""`ottla audit`: the group and its commands."""

from __future__ import annotations

import click

from ottla.cli.lazy import Entry, LazyGroup

_COMMANDS = {
    "archive": Entry("ottla.cli.audit.archive", "Count an archive by time from its receipts."),
    "compare": Entry("ottla.cli.audit.compare", "Compare tiers by topic and time."),
    "find": Entry("ottla.cli.audit.find", "Name the records in which two topics differ."),
    "tally": Entry("ottla.cli.audit.tally", "Count topics by time and publish the tallies."),
}


@click.group("audit", cls=LazyGroup, entries=_COMMANDS)
def audit() -> None:
    """Prove that all of it arrived: count, compare, and name what differs.

    Every tier of a pipeline leaves tallies in an audit topic: how many records of a topic it has in each time bucket,
    and their fingerprint. Producers and consumers do so themselves (audit=Audit(tier=...)); 'tally' does it for any
    topic. 'compare' puts tiers side by side, and 'find' names records by partition and offset.

    \b
    Examples:
      ottla audit tally clicks --tier edge --bootstrap edge:9092 --audit-bootstrap hq:9092
      ottla audit tally clicks --tier aggregate --bootstrap hq:9092
      ottla audit archive /data/clicks --tier archive --bootstrap hq:9092
      ottla audit compare clicks --tier edge --tier aggregate --bootstrap hq:9092
      ottla audit find clicks --left edge:9092 --right hq:9092 --from -2h
    """
