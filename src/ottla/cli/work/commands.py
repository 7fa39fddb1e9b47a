"""The group `ottla work`: its commands are imported when they are used."""

from __future__ import annotations

import click

from ottla.cli.lazy import Entry, LazyGroup

COMMANDS = {
    "errors": Entry("ottla.cli.work.errors", "List, show, retry and drop failed units."),
    "report": Entry("ottla.cli.work.report", "Report what a fleet has done, from its event files."),
    "reset": Entry("ottla.cli.work.reset", "Move the positions of a group, or change its settings."),
    "run": Entry("ottla.cli.work.run", "Call a function with all records, as a node of a group."),
    "serve": Entry("ottla.cli.work.serve", "Run jobs of a store, such as 'archive --engine fleet'."),
    "status": Entry("ottla.cli.work.status", "Show nodes, units and lag of a group."),
    "topics": Entry("ottla.cli.work.topics", "List, add and remove topics of a group."),
    "units": Entry("ottla.cli.work.status", "List units that are waiting or in flight."),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def work() -> None:
    """Call a function with all records of topics, on a fleet of nodes that share the work.

    A node is a process that runs 'ottla work run', or a program with ottla.Fleet. Offset ranges of the topics are
    units; any node takes any unit, and another node takes over the units of a node that died.

    \b
    Examples:
      ottla work run --handler shop:handle --topic clicks --store redis://localhost
      ottla work status --store redis://localhost --watch
      ottla work errors list --store redis://localhost
      ottla work reset --topic clicks --to -2h --store redis://localhost --dry-run
    """
