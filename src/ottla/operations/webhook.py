"""Posts JSON to an address. The address may hold a secret: errors name its host only."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from ottla.errors import ConfigError, OttlaError

_TIMEOUT_SECONDS = 10.0


class WebhookFailed(OttlaError):
    """A webhook did not accept what was posted."""

    def __init__(self, host: str, reason: str) -> None:
        self.host = host
        self.reason = reason
        super().__init__(f"{host} did not accept what was posted: {reason}")


def check_url(url: str) -> str:
    """Return the address. Raises `ConfigError` unless it begins with http:// or https:// and has a host."""
    try:
        parts = urllib.parse.urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        is_valid = False
    if not is_valid:
        raise ConfigError(f"webhook {url!r}: an address that begins with http:// or https:// is accepted")
    return url


def post(url: str, content: dict[str, Any], *, timeout: float = _TIMEOUT_SECONDS) -> None:
    """Post `content` as JSON. Raises `WebhookFailed` if it is not accepted in time, `ConfigError` for a bad address."""
    request = urllib.request.Request(  # noqa: S310 - the scheme is checked
        check_url(url), data=json.dumps(content).encode(), headers={"Content-Type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310
            answer.read(1)
    except (urllib.error.URLError, OSError, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it is the answer, too
        host = urllib.parse.urlsplit(url).hostname or "the webhook"
        raise WebhookFailed(host, str(error)) from error
