"""Posts changes of state to a webhook, and keeps the state in a small file.

The file is written after the post has succeeded: a change that could not be posted is posted by the next comparison.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.audit.alerts import State, changes
from ottla.cli.errors import CommandFailed, UsageError
from ottla.files import replace_whole

if TYPE_CHECKING:
    from ottla.jobs.comparisons import Comparison

_TIMEOUT_SECONDS = 10.0


def post_changes(url: str, state: Path, comparison: Comparison) -> int:
    """Post what has changed since the last comparison. Returns the number of changes; without any, nothing is posted.

    Raises `CommandFailed` if the webhook does not accept it or the file cannot be read or written.
    """
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise UsageError(f"--webhook {url!r}: an address that begins with http:// or https:// is accepted")
    found, after = changes(_read(state), comparison.rows)
    if found:
        _post(url, {"compared_at": comparison.compared_at, "changes": [change.to_json() for change in found]})
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


def _post(url: str, content: dict[str, Any]) -> None:
    request = urllib.request.Request(  # noqa: S310 - the scheme was checked
        url, data=json.dumps(content).encode(), headers={"Content-Type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310
            answer.read(1)
    except (urllib.error.URLError, OSError, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it is the answer, too
        host = urllib.parse.urlsplit(url).hostname or "the webhook"  # the address may hold a secret
        raise CommandFailed(f"{host} did not accept the changes, which the next run posts again: {error}") from error
