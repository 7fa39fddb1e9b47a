"""Posts changes of state to a webhook, and keeps the state in a small file.

The file is written after the post has succeeded: a change that could not be posted is posted by the next comparison.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.audit.alerts import State, changes
from ottla.cli.errors import CommandFailed, UsageError
from ottla.errors import ConfigError
from ottla.files import replace_whole
from ottla.operations.webhook import WebhookFailed, check_url, post

if TYPE_CHECKING:
    from ottla.jobs.comparisons import Comparison


def post_changes(url: str, state: Path, comparison: Comparison) -> int:
    """Post what has changed since the last comparison. Returns the number of changes; without any, nothing is posted.

    Raises `CommandFailed` if the webhook does not accept it or the file cannot be read or written.
    """
    try:
        check_url(url)
    except ConfigError as error:
        raise UsageError(f"--{error}") from error
    found, after = changes(_read(state), comparison.rows)
    if found:
        try:
            post(url, {"compared_at": comparison.compared_at, "changes": [change.to_json() for change in found]})
        except WebhookFailed as error:
            raise CommandFailed(
                f"{error.host} did not accept the changes, which the next run posts again: {error.reason}"
            ) from error
    try:
        replace_whole(state, json.dumps({"version": 1, "buckets": after}).encode())
    except OSError as error:
        text = f"--state {state} cannot be written: {error.strerror}"
        raise CommandFailed(f"{text}; the next run posts the changes again" if found else text) from error
    return len(found)


def _read(state: Path) -> State:
    try:
        content = json.loads(state.read_text(encoding="utf-8"))
        buckets = content["buckets"]
        if not all(isinstance(text, str) for pair in buckets.items() for text in pair):
            raise ValueError("verdicts are texts")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CommandFailed(
            f"the state in {state} cannot be read: {error}; remove the file to post all states again"
        ) from error
    return dict(buckets)
