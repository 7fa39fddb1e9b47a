"""Which topic a syslog message goes to: the first rule that fits it, by facility, severity, app and host.

Rules and parsed messages come in, a number of a topic for each message goes out. Patterns are those of a shell. Pure.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ottla.errors import ConfigError
from ottla.gateway.assembling import binary
from ottla.gateway.syslog.parsing import APP, HOST, Numbers, Parsed
from ottla.produce.records import topic as check_topic
from ottla.wire.kernels import syslog as k

FACILITIES = (
    *("kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp"),
    *("ntp", "security", "console", "solaris-cron"),
    *(f"local{number}" for number in range(8)),
)
SEVERITIES = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
_NOTHING = 24 * 8
"""The place of messages without a priority in a table of priorities."""
_MOST_CACHED = 10_000
_KEYS = ("topic", "facility", "severity", "app", "host")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a message must have to go to `topic`; what is empty fits every message, also one that was not parsed."""

    topic: str
    facilities: tuple[str, ...] = ()
    severities: tuple[str, ...] = ()
    """Exactly these severities."""
    apps: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    """Patterns such as `web-*`; upper and lower case are the same."""

    def __post_init__(self) -> None:
        check_topic(self.topic)
        for names, known in ((self.facilities, FACILITIES), (self.severities, SEVERITIES)):
            for name in names:
                if name not in known:
                    raise ConfigError(f"{name!r} is none of {', '.join(known)}")


def rule_of(table: Mapping[str, Any]) -> Rule:
    """Return a rule from a table of a TOML file: `topic`, and `facility`, `severity`, `app`, `host` as text or lists.

    Raises `ConfigError`.
    """
    unknown = [key for key in table if key not in _KEYS]
    if unknown:
        raise ConfigError(f"a rule has the key {unknown[0]!r}; accepted are {', '.join(_KEYS)}")
    texts = {key: _texts(key, table[key]) for key in table}
    if len(texts.get("topic", ())) != 1:
        raise ConfigError("a rule needs exactly one topic")
    return Rule(
        topic=texts["topic"][0],
        facilities=texts.get("facility", ()),
        severities=texts.get("severity", ()),
        apps=texts.get("app", ()),
        hosts=texts.get("host", ()),
    )


def _texts(key: str, value: object) -> tuple[str, ...]:
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) and item for item in items):
        raise ConfigError(f"{key} of a rule must be a text or a list of texts, got {value!r}")
    return tuple(items)


class Topics:
    """Chooses topics by rules; a message that none fits goes to `default`."""

    def __init__(self, rules: tuple[Rule, ...], *, default: str) -> None:
        check_topic(default)
        self.names = tuple(dict.fromkeys([*(rule.topic for rule in rules), default]))
        self._rules = [_Matching(rule, self.names.index(rule.topic)) for rule in rules]
        self._default = self.names.index(default)

    def choose(self, parsed: Parsed) -> Numbers:
        """Return the index into `names` for each message."""
        chosen = np.full(len(parsed.table), -1, np.int64)
        texts: dict[int, tuple[Numbers, list[bytes]]] = {}
        for rule in self._rules:
            open_rows = chosen < 0
            if not open_rows.any():
                break
            chosen[open_rows & rule.fits(parsed, texts)] = rule.topic
        chosen[chosen < 0] = self._default
        return chosen


class _Matching:
    """One rule, prepared: a table of priorities, and what was found for the texts seen so far."""

    def __init__(self, rule: Rule, topic: int) -> None:
        self.topic = topic
        self._priorities = _priorities(rule)
        self._patterns: list[tuple[int, re.Pattern[str], dict[bytes, bool]]] = [
            (text, _pattern(patterns), {}) for text, patterns in ((APP, rule.apps), (HOST, rule.hosts)) if patterns
        ]

    def fits(self, parsed: Parsed, texts: dict[int, tuple[Numbers, list[bytes]]]) -> npt.NDArray[np.bool_]:
        """Return which messages it fits. `texts` keeps the different texts of these messages between rules."""
        priority = parsed.table[:, k.PRI]
        fits = self._priorities[np.where(priority < 0, _NOTHING, priority)]
        for text, pattern, known in self._patterns:
            if text not in texts:
                texts[text] = _different(parsed, text)
            numbers, values = texts[text]
            fits &= np.array([_matches(pattern, value, known) for value in values], np.bool_)[numbers]
        return fits


def _priorities(rule: Rule) -> npt.NDArray[np.bool_]:
    """Return for each priority, and for none, whether the rule accepts it."""
    table = np.zeros(_NOTHING + 1, np.bool_)
    for facility, name in enumerate(FACILITIES):
        for severity, level in enumerate(SEVERITIES):
            is_in = not rule.facilities or name in rule.facilities
            table[facility * 8 + severity] = is_in and (not rule.severities or level in rule.severities)
    table[_NOTHING] = not rule.facilities and not rule.severities
    return table


def _pattern(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{fnmatch.translate(pattern)})" for pattern in patterns), re.IGNORECASE)


def _different(parsed: Parsed, text: int) -> tuple[Numbers, list[bytes]]:
    """Return each different text once, and which one each message has. A missing text is an empty one."""
    pieces = parsed.pieces(text)
    column = binary(pieces._replace(sizes=np.maximum(pieces.sizes, 0)), parsed.arrivals.data).dictionary_encode()
    return np.asarray(column.indices.to_numpy(), np.int64), column.dictionary.to_pylist()


def _matches(pattern: re.Pattern[str], value: bytes, known: dict[bytes, bool]) -> bool:
    found = known.get(value)
    if found is None:
        if len(known) >= _MOST_CACHED:
            known.clear()
        found = known[value] = pattern.match(value.decode(errors="replace")) is not None
    return found
