"""Asks the cluster of a command line that is not finished: within a second, or not at all.

The context of the command comes in, names go out. Nothing is printed, and whatever fails yields no names: a line that
is being typed is no place for errors.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from ottla.default_address import default_bootstrap

if TYPE_CHECKING:
    from ottla.config import Security
    from ottla.net.cluster import Cluster

SECONDS = 1.0
_ADDRESSES = ("bootstrap", "source_bootstrap", "left")
"""Arguments of commands that hold an address."""


def ask(context: click.Context, question: Callable[[Cluster], Iterable[str]]) -> list[str]:
    """Return the answer of the cluster that the command would use; nothing if there is none within a second."""
    answers: list[str] = []

    def run() -> None:
        with suppress(Exception):
            answers.extend(_asked(context, question))

    logging.disable(logging.CRITICAL)
    # A name that is being resolved cannot be interrupted: the thread is left behind.
    thread = threading.Thread(target=run, name="ottla-completion", daemon=True)
    thread.start()
    thread.join(SECONDS)
    return list(answers)


def _asked(context: click.Context, question: Callable[[Cluster], Iterable[str]]) -> list[str]:
    from ottla.config import Retry, Timeouts
    from ottla.net.cluster import Cluster

    bootstrap, security = _access(context)
    limits = Timeouts(total=SECONDS, connect=SECONDS, request=SECONDS)
    with Cluster(bootstrap, security=security, timeouts=limits, retry=Retry(first_contact=1)) as cluster:
        return list(question(cluster))


def _access(context: click.Context) -> tuple[str, Security]:
    from ottla.cli.options.profile import access_at, chosen_profile
    from ottla.cli.options.security import security_of

    given = next(
        (
            context.params[name]
            for name in _ADDRESSES
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        ),
        None,
    )
    profile = chosen_profile(context)
    security = security_of(context, context.params)
    if profile is not None:
        return given or profile.bootstrap, security
    return access_at(given or default_bootstrap(), security)
