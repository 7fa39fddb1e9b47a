"""Measures the load of a running cluster for `ottla capacity --measure`: two looks, and a wait between them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ottla.cli.terminal.progress import LiveLine

if TYPE_CHECKING:
    from ottla.config import Security
    from ottla.operations.capacity.measure import Observed


def measured(
    bootstrap: str, security: Security, *, window: float, timeout: float, texts: Mapping[str, str]
) -> Observed:
    """Return the load of a window. Raises `InputError` if nothing was written in it."""
    from ottla.admin import Admin
    from ottla.cli.options.connection import few_retries
    from ottla.config import Timeouts
    from ottla.operations.capacity.measure import look, observed

    with Admin(bootstrap, security=security, timeouts=Timeouts(total=timeout), retry=few_retries()) as admin:
        before = look(admin, now=time.monotonic())
        end = before.at + window
        with LiveLine(lambda: f"measuring for {max(0.0, end - time.monotonic()):.0f} s more"):
            time.sleep(max(0.0, end - time.monotonic()))
        after = look(admin, now=time.monotonic())
    groups = texts.get("groups")
    return observed(before, after, groups=None if groups is None or not groups.isdigit() else int(groups))
