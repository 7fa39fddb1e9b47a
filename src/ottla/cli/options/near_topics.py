"""What a misspelt topic may have been meant to be, for the error of a command that did not find it.

The error and the cluster come in, the error to show goes out. It asks the brokers that have just answered for the names
of topics, for a second at most; whatever fails yields no name.
"""

from __future__ import annotations

import difflib
import heapq
import re
from collections.abc import Sequence
from contextlib import suppress

from ottla.admin import Admin
from ottla.cli.advice import reword
from ottla.cli.errors import CommandFailed
from ottla.config import Retry, Security, Timeouts
from ottla.errors import BrokerError, ErrorCode, OttlaError
from ottla.text import printable

_SECONDS = 1.0
_COMPARED = 1000
_TOPIC = re.compile(r"\btopic (\S+)$")


def with_near_topic(error: BrokerError, bootstrap: str, security: Security) -> Exception:
    """Return the error with the topic that is meant; the error itself if there is none that is near."""
    named = _TOPIC.search(error.context)
    if error.code is not ErrorCode.unknown_topic_or_partition or named is None:
        return error
    limits = Timeouts(total=_SECONDS, connect=_SECONDS, request=_SECONDS)
    names: list[str] = []
    with (
        suppress(OttlaError),
        Admin(bootstrap, security=security, timeouts=limits, retry=Retry(first_contact=1)) as admin,
    ):
        names = [name for name in admin.topic_names() if name != named[1]]
    near = difflib.get_close_matches(named[1], _likely(named[1], names), 1)
    return CommandFailed(f"{reword(str(error))}\n  did you mean {printable(near[0])}?") if near else error


def _likely(meant: str, names: Sequence[str]) -> list[str]:
    """Return the names with about the same letters: to compare tens of thousands in full would take seconds."""
    letters = set(meant)
    return heapq.nsmallest(_COMPARED, names, key=lambda name: (len(letters ^ set(name)), abs(len(meant) - len(name))))
