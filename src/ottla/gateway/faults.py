"""Logs errors that are bugs: where they were raised and of which type, never their text, which may have a payload."""

from __future__ import annotations

import logging
import traceback


def log_fault(log: logging.Logger, error: BaseException, /, what: str) -> None:
    """Log what failed, and where. `what` must have no content of a client."""
    trace = traceback.extract_tb(error.__traceback__)
    place = f"{trace[-1].filename}:{trace[-1].lineno}" if trace else "an unknown place"
    log.error("%s: %s at %s; this is a bug", what, type(error).__name__, place)
