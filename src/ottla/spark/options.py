"""Parsing of Spark options, and how reading and writing reach the cluster.

A mapping of option names to texts comes in, as Spark passes it; frozen, picklable values go out, or a `ConfigError`
that names the option, its value and what is accepted. Parsing never connects.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ottla.config import Retry, Timeouts, parse_bootstrap
from ottla.errors import ConfigError
from ottla.net.access import ClusterAccess
from ottla.spark.option_names import IGNORED, PREFIX
from ottla.spark.security import security_options

_UNITS = {"": 1.0, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.I)
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", re.I)
_FACTORS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def cluster_access(options: Mapping[str, str]) -> ClusterAccess:
    """Parse the `kafka.*` options that reading and writing share. Raises `ConfigError` for a wrong value.

    Unknown names are not checked here; `option_names.check_names` does that.
    """
    lowered = {name.lower(): value for name, value in options.items()}
    settings = {
        name.removeprefix(PREFIX): value
        for name, value in lowered.items()
        if name.startswith(PREFIX) and name not in IGNORED
    }
    bootstrap = settings.get("bootstrap.servers", "").strip()
    if not bootstrap:
        raise ConfigError("option kafka.bootstrap.servers is missing: give one or more HOST:PORT, separated by commas")
    parse_bootstrap(bootstrap)
    default = Timeouts()
    total = seconds_from_ms(lowered, "kafka.default.api.timeout.ms", default.total)
    backoff = Retry()
    initial = seconds_from_ms(lowered, "kafka.retry.backoff.ms", backoff.initial)
    return ClusterAccess(
        bootstrap=bootstrap,
        security=security_options(settings),
        client_id=settings.get("client.id") or _client_id(lowered),
        timeouts=Timeouts(
            connect=seconds_from_ms(lowered, "kafka.socket.connection.setup.timeout.ms", default.connect),
            request=seconds_from_ms(lowered, "kafka.request.timeout.ms", default.request),
            total=total,
            metadata_age=seconds_from_ms(lowered, "kafka.metadata.max.age.ms", default.metadata_age),
        ),
        retry=Retry(
            initial=initial,
            maximum=max(initial, seconds_from_ms(lowered, "kafka.retry.backoff.max.ms", backoff.maximum)),
        ),
    )


def _client_id(lowered: Mapping[str, str]) -> str:
    """The client id. Ottla joins no group, so brokers see `groupIdPrefix` as the client id instead."""
    prefix = lowered.get("groupidprefix", "").strip()
    return prefix or "ottla-spark"


def is_set(options: Mapping[str, str], name: str) -> bool:
    """Whether the option is set."""
    return _text(options, name) is not None


def integer(options: Mapping[str, str], name: str, *, lowest: int = 1) -> int | None:
    """Parse a whole number; None if the option is not set. Raises `ConfigError` if it is below `lowest`."""
    text = _text(options, name)
    if text is None:
        return None
    if not re.fullmatch(r"[+-]?\d+", text) or int(text) < lowest:
        raise ConfigError(f"option {name} is {text!r}; accepted is a whole number from {lowest}")
    return int(text)


def boolean(options: Mapping[str, str], name: str, default: bool) -> bool:
    """Parse `true` or `false`, in any case. Raises `ConfigError` for anything else."""
    text = _text(options, name)
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"option {name} is {text!r}; accepted are true and false")
    return text.lower() == "true"


def seconds_from_ms(options: Mapping[str, str], name: str, default: float) -> float:
    """Parse an option in milliseconds; returns seconds. Raises `ConfigError` if it is not a positive whole number."""
    milliseconds = integer(options, name)
    return default if milliseconds is None else milliseconds / 1000


def duration(options: Mapping[str, str], name: str, default: float) -> float:
    """Parse `500ms`, `30s`, `15m`, `2h` or a number of seconds; returns seconds. Raises `ConfigError` otherwise."""
    text = _text(options, name)
    if text is None:
        return default
    match = _DURATION.fullmatch(text)
    if match is None or match[2].lower() not in _UNITS:
        raise ConfigError(f"option {name} is {text!r}; accepted is a time such as 500ms, 30s, 15m or 2h")
    return float(match[1]) * _UNITS[match[2].lower()]


def size(options: Mapping[str, str], name: str) -> int | None:
    """Parse a size such as `1000000`, `64m` or `1g`; returns bytes. Raises `ConfigError` for anything else."""
    text = _text(options, name)
    if text is None:
        return None
    match = _SIZE.fullmatch(text)
    if match is None or float(match[1]) * _FACTORS[match[2].lower()] < 1:
        raise ConfigError(f"option {name} is {text!r}; accepted is a size in bytes such as 1000000, 64m or 1g")
    return int(float(match[1]) * _FACTORS[match[2].lower()])


def _text(options: Mapping[str, str], name: str) -> str | None:
    """The option's text, stripped. Spark's own mapping ignores case; a plain dict does not, so search it."""
    lowered = name.lower()
    return next((value.strip() for key, value in options.items() if key.lower() == lowered), None)
