"""Options of a Spark job into settings: how brokers are reached, for reading and writing alike.

A mapping of names to texts comes in, as Spark hands it over; frozen, picklable values go out, or one error that names
the option, its value and what is accepted. Nothing connects here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ottla.config import Retry, Security, Timeouts, parse_bootstrap
from ottla.errors import ConfigError
from ottla.fetch.options import Fetching, OnLost
from ottla.model import Isolation
from ottla.spark.names import IGNORED, PREFIX
from ottla.spark.security import Protection, protection

if TYPE_CHECKING:
    from ottla.admin import Admin
    from ottla.fetch.reader import Reader
    from ottla.net import Cluster
    from ottla.net.context import Sinks

_UNITS = {"": 1.0, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.I)
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", re.I)
_FACTORS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """How the brokers are reached. It may travel to executors; there it makes clients of their own."""

    bootstrap: str
    protection: Protection = field(default_factory=Protection)
    client_id: str = "ottla-spark"
    timeouts: Timeouts = field(default_factory=Timeouts)
    retry: Retry = field(default_factory=Retry)

    @property
    def security(self) -> Security:
        """For clients in this process; do not pickle it."""
        return self.protection.security()

    def patient(self, seconds: float) -> Connection:
        """The same, whose calls take trouble with brokers for so long before they give up."""
        return replace(self, timeouts=replace(self.timeouts, total=seconds))

    def cluster(self) -> Cluster:
        """A client of the cluster; nothing connects before its first call."""
        from ottla.net import Cluster

        return Cluster(
            self.bootstrap,
            security=self.security,
            client_id=self.client_id,
            timeouts=self.timeouts,
            retry=self.retry,
        )

    def admin(self) -> Admin:
        """For topics, sizes and groups."""
        from ottla.admin import Admin

        return Admin(
            self.bootstrap,
            security=self.security,
            client_id=self.client_id,
            timeouts=self.timeouts,
            retry=self.retry,
        )

    def reader(
        self,
        *,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        on_lost: OnLost = OnLost.ERROR,
        fetching: Fetching | None = None,
        events: Sinks = (),
    ) -> Reader:
        """A reader of ranges."""
        from ottla.fetch.reader import Reader  # its kernels take a second to load, and whoever plans needs none

        return Reader(
            self.bootstrap,
            security=self.security,
            client_id=self.client_id,
            timeouts=self.timeouts,
            retry=self.retry,
            isolation=isolation,
            on_lost=on_lost,
            fetching=fetching or Fetching(),
            events=events,
        )


def connection(options: Mapping[str, str]) -> Connection:
    """From the `kafka.*` options that reading and writing have in common; `names.check_names` looks at names."""
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
    usual = Timeouts()
    total = seconds_ms(lowered, "kafka.default.api.timeout.ms", usual.total)
    backoff = Retry()
    initial = seconds_ms(lowered, "kafka.retry.backoff.ms", backoff.initial)
    return Connection(
        bootstrap=bootstrap,
        protection=protection(settings),
        client_id=settings.get("client.id") or _client_id(lowered),
        timeouts=Timeouts(
            connect=seconds_ms(lowered, "kafka.socket.connection.setup.timeout.ms", usual.connect),
            request=seconds_ms(lowered, "kafka.request.timeout.ms", usual.request),
            total=total,
            metadata_age=seconds_ms(lowered, "kafka.metadata.max.age.ms", usual.metadata_age),
        ),
        retry=Retry(
            initial=initial,
            maximum=max(initial, seconds_ms(lowered, "kafka.retry.backoff.max.ms", backoff.maximum)),
        ),
    )


def _client_id(lowered: Mapping[str, str]) -> str:
    """No group is joined, so the prefix of its name tells brokers who asks in the one place that is left."""
    prefix = lowered.get("groupidprefix", "").strip()
    return prefix or "ottla-spark"


def given(options: Mapping[str, str], name: str) -> bool:
    """Whether an option is there."""
    return _text(options, name) is not None


def whole(options: Mapping[str, str], name: str, *, lowest: int = 1) -> int | None:
    """The whole number that an option has; None where it is not given."""
    text = _text(options, name)
    if text is None:
        return None
    if not re.fullmatch(r"[+-]?\d+", text) or int(text) < lowest:
        raise ConfigError(f"option {name} is {text!r}; accepted is a whole number from {lowest}")
    return int(text)


def truth(options: Mapping[str, str], name: str, default: bool) -> bool:
    """`true` or `false`, in any case."""
    text = _text(options, name)
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"option {name} is {text!r}; accepted are true and false")
    return text.lower() == "true"


def seconds_ms(options: Mapping[str, str], name: str, default: float) -> float:
    """Seconds, from an option that counts milliseconds."""
    found = whole(options, name)
    return default if found is None else found / 1000


def duration(options: Mapping[str, str], name: str, default: float) -> float:
    """Seconds, from `500ms`, `30s`, `15m`, `2h`; a number alone counts seconds."""
    text = _text(options, name)
    if text is None:
        return default
    match = _DURATION.fullmatch(text)
    if match is None or match[2].lower() not in _UNITS:
        raise ConfigError(f"option {name} is {text!r}; accepted is a time such as 500ms, 30s, 15m or 2h")
    return float(match[1]) * _UNITS[match[2].lower()]


def size(options: Mapping[str, str], name: str) -> int | None:
    """Bytes, from `1000000`, `64m` or `1g`."""
    text = _text(options, name)
    if text is None:
        return None
    match = _SIZE.fullmatch(text)
    if match is None or float(match[1]) * _FACTORS[match[2].lower()] < 1:
        raise ConfigError(f"option {name} is {text!r}; accepted is a size in bytes such as 1000000, 64m or 1g")
    return int(float(match[1]) * _FACTORS[match[2].lower()])


def _text(options: Mapping[str, str], name: str) -> str | None:
    """Spark's own mapping takes names in any case; a plain one is searched."""
    wanted = name.lower()
    return next((value.strip() for given, value in options.items() if given.lower() == wanted), None)
