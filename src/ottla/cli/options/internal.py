"""`--internal`: groups and topics in which Ottla or Kafka keeps something for itself are listed only on request."""

from __future__ import annotations

import re

import click

_GROUP = re.compile(r"ottla-(fleet\.|(replay|mirror|check)[-.])")
"""As `operations/lag/names.py` has them."""
_TOPICS = frozenset({"ottla-audit", "ottla-gateway-keys", "ottla-mirror", "ottla-probe"})
"""The default names. A topic with a chosen name is listed."""

internal_option = click.option(
    "--internal", is_flag=True, help="Also those in which Ottla or Kafka keeps something for itself."
)


def is_internal_group(name: str) -> bool:
    """Return whether Ottla keeps positions in a group of this name: that of a fleet, a replay or a mirror."""
    return _GROUP.match(name) is not None


def is_internal_topic(name: str) -> bool:
    """Return whether a topic of this name is one of Ottla's own."""
    return name in _TOPICS


def say_hidden(count: int, what: str) -> None:
    """Say on stderr how many groups or topics are not listed."""
    if count:
        click.echo(f"{count:,} internal {what}{'s' if count != 1 else ''} not listed: --internal shows all", err=True)
