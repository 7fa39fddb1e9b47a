"""The group `ottla reassign`: its commands are imported when they are used."""

from __future__ import annotations

import click

from ottla.cli.lazy import Entry, LazyGroup

COMMANDS = {
    "cancel": Entry("ottla.cli.reassign.control", "Stop a run; what moves goes back to its old replicas."),
    "pause": Entry("ottla.cli.reassign.control", "Have a run begin no further moves."),
    "plan": Entry(
        "ottla.cli.reassign.plan",
        "Plan moves of replicas, as few as possible; change nothing.",
        extra="operations",
        packages=("ortools",),
    ),
    "resume": Entry("ottla.cli.reassign.control", "Have a paused run go on."),
    "run": Entry("ottla.cli.reassign.run", "Carry out a plan, or continue it."),
    "status": Entry("ottla.cli.reassign.status", "Show how far moves are, with or without a plan."),
    "throttle": Entry("ottla.cli.reassign.control", "Change the rate of a run."),
    "verify": Entry("ottla.cli.reassign.verify", "Compare the cluster with a plan."),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def reassign() -> None:
    """Move replicas between brokers: plan, look, run.

    A plan moves as little as possible and is a file. A run throttles itself, and continues after kill -9.

    \b
    Examples:
      ottla reassign plan --drain 4 --out drain.json
      ottla reassign plan --balance --out even.json
      ottla reassign run drain.json --throttle 50MB/s
      ottla reassign status drain.json
      ottla reassign throttle drain.json 100MB/s
      ottla reassign cancel drain.json
    """
