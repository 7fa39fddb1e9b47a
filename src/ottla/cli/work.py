"""`ottla work`: a function on all records of topics, by any number of nodes that share the work, and how it goes.

The commands parse, ask and print; what they do is in `working`.
"""

from __future__ import annotations

import click

from ottla.cli import Entry, LazyGroup

COMMANDS = {
    "errors": Entry("ottla.cli.work_errors", "Units that were given up: list, show, try again, drop."),
    "report": Entry("ottla.cli.work_report", "What a fleet has done, from the files of its events, by Spark."),
    "reset": Entry("ottla.cli.work_changes", "Let a group go on elsewhere in a topic, or with other settings."),
    "run": Entry("ottla.cli.work_run", "Call a function with everything that comes to topics, as a node of a group."),
    "serve": Entry("ottla.cli.work_serve", "Work on the jobs of a store, as 'archive --engine fleet' puts them there."),
    "status": Entry("ottla.cli.work_looks", "How a group stands: who plans, the nodes, units that wait, the lag."),
    "topics": Entry("ottla.cli.work_changes", "Topics that a group works on: list, add, remove."),
    "units": Entry("ottla.cli.work_looks", "List units: those that somebody works on, and those that wait."),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def work() -> None:
    """A function on all records of topics, by any number of nodes that share the work.

    A node is a process that runs 'ottla work run', or a program with ottla.Fleet. The offsets of the topics are cut
    into units; any node takes any unit, and what a node that died had in hand is done by another one.

    \b
    Examples:
      ottla work run --handler shop:handle --topic clicks --store redis://localhost
      ottla work status --store redis://localhost --watch
      ottla work errors list --store redis://localhost
      ottla work reset --topic clicks --to -2h --store redis://localhost --dry-run
    """
