"""Settings of topics: DescribeConfigs and IncrementalAlterConfigs requests and what the responses mean.

Comes in: topics and changes, and responses. Goes out: requests, and `Setting` values; the error of a topic becomes a
`BrokerError` with the broker's message. Pure: `Admin` sends and waits.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ottla.admin.topics import Apply
from ottla.errors import BrokerError, ConfigError, ErrorCode
from ottla.net.connection import VersionOf
from ottla.wire import messages

DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS = 32, 44
_TOPIC = 2
_SET, _DELETE = 0, 1
_NO_LIMIT = -1
"""Of a retention."""
_OTHER_UNITS = {".hours": 3_600_000, ".minutes": 60_000}

Settings = dict[str, "Setting"]
"""The settings of a topic, by name."""
Changes = Mapping[str, str | None]
"""New values by name; None removes a topic's own value, so that the brokers' value applies again."""


class SettingSource(Enum):
    """Where a value comes from. The members have the protocol's numbers."""

    UNKNOWN = 0
    TOPIC = 1
    """Set for this topic."""
    BROKER = 2
    """Set dynamically for one broker."""
    ALL_BROKERS = 3
    """Set dynamically for all brokers."""
    FILE = 4
    """From the broker's properties file."""
    DEFAULT = 5
    """Kafka's own default."""

    @classmethod
    def _missing_(cls, value: object) -> SettingSource:
        return cls.UNKNOWN


class SettingType(Enum):
    """The type of a value. The members have the protocol's numbers."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9

    @classmethod
    def _missing_(cls, value: object) -> SettingType:
        return cls.UNKNOWN


_NUMBERS = frozenset({SettingType.INT, SettingType.SHORT, SettingType.LONG, SettingType.DOUBLE})


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of a topic as the broker sees it. `value` is None if it is sensitive."""

    name: str
    value: str | None
    source: SettingSource = SettingSource.UNKNOWN
    type: SettingType = SettingType.UNKNOWN
    sensitive: bool = False
    read_only: bool = False
    """Whether it cannot be changed."""
    inherited: str | None = None
    """The value that would apply without the topic's own; None if the broker does not report it."""
    default: str | None = None
    """Kafka's own default; None if the broker does not report it."""
    documentation: str | None = None
    """Kafka's own description."""

    @property
    def is_default(self) -> bool:
        """Whether neither the topic nor the brokers set it to another value."""
        return self.source is SettingSource.DEFAULT or (
            self.source is not SettingSource.TOPIC and self.value == self.default
        )

    def means(self, text: str) -> bool:
        """Whether `text` is another way to write this value: brokers normalize values."""
        if self.value is None:
            return self.sensitive
        return _normal(self.value, self.type) == _normal(text, self.type)


def build_describe(
    version_of: VersionOf, topics: Collection[str], *, only: Collection[str] | None = None
) -> messages.Message:
    """Build a DescribeConfigs request for topics. `only` names the settings (None: all)."""
    # Null asks for all settings.
    keys = None if only is None else tuple(only)
    fields = {
        "resources": [{"resource_type": _TOPIC, "resource_name": name, "configuration_keys": keys} for name in topics],
        "include_synonyms": True,
        "include_documentation": only is None,
    }
    message: messages.Message = messages.compose(
        messages.request_type(DESCRIBE_CONFIGS, version_of(DESCRIBE_CONFIGS)), fields
    )
    return message


def read_describe(response: Any) -> dict[str, Settings]:
    """Return the settings of each topic, sorted by name. Raises a topic's `BrokerError`."""
    return {result.resource_name: _of_topic(result) for result in response.results}


def read_describe_known(response: Any) -> dict[str, Settings]:
    """Return the settings of each topic that the broker knows. Raises a topic's `BrokerError` for any other reason."""
    unknown = ErrorCode.unknown_topic_or_partition
    return {result.resource_name: _of_topic(result) for result in response.results if result.error_code is not unknown}


def _of_topic(result: Any) -> Settings:
    if result.error_code is not ErrorCode.none:
        what = f"describing the settings of topic {result.resource_name}"
        raise BrokerError(result.error_code, what, result.error_message)
    return _sorted(_setting(row) for row in result.configs)


def from_created(configs: Iterable[Any] | None) -> Settings:
    """Return the settings in the response to CreateTopics (KIP-525); none if the user may not see them."""
    return _sorted(
        Setting(
            row.name,
            row.value,
            SettingSource(int(row.config_source)),
            sensitive=row.is_sensitive,
            read_only=row.read_only,
        )
        for row in configs or ()
    )


def build_alter(version_of: VersionOf, topic: str, changes: Changes, *, apply: Apply) -> messages.Message:
    """Build an IncrementalAlterConfigs request (KIP-339). Settings it does not name keep their values."""
    rows = [
        {"name": name, "config_operation": _DELETE if value is None else _SET, "value": value}
        for name, value in changes.items()
    ]
    fields = {
        "resources": [{"resource_type": _TOPIC, "resource_name": topic, "configs": rows}],
        "validate_only": apply is Apply.CHECK,
    }
    message: messages.Message = messages.compose(
        messages.request_type(INCREMENTAL_ALTER_CONFIGS, version_of(INCREMENTAL_ALTER_CONFIGS)), fields
    )
    return message


def check_alter(response: Any) -> None:
    """Raise the topic's error, if any."""
    for row in response.responses:
        if row.error_code is not ErrorCode.none:
            raise BrokerError(row.error_code, f"altering settings of topic {row.resource_name}", row.error_message)


def not_yet(response: Any, topic: str, changes: Changes) -> BrokerError | None:
    """Return which change a broker does not have yet, by its response to DescribeConfigs, or None if it has all."""
    # A topic that is not in the response counts as one without the change.
    settings = read_describe(response).get(topic, {})
    for name, value in changes.items():
        setting = settings.get(name)
        own = setting is not None and setting.source is SettingSource.TOPIC
        known = not own if value is None else setting is not None and own and setting.means(value)
        if not known:
            return BrokerError(ErrorCode.request_timed_out, f"{name} of topic {topic} is set, but not on every broker")
    return None


def refuse_unknown(names: Iterable[str], known: Collection[str]) -> None:
    """Raise `ConfigError` for an unknown name, suggesting similar ones. If `known` is empty, all names pass."""
    for name in names:
        # Kafka does not list the settings for its own tests, but accepts them.
        if known and name not in known and not name.startswith("internal."):
            near = nearest(name, known)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(sorted(known))}"
            raise ConfigError(f"topics have no setting {name!r}: {hint}")


def nearest(name: str, known: Collection[str]) -> list[str]:
    """Return up to three known names that are spelled alike, or contain all of its words."""
    words = set(name.lower().replace("_", ".").replace("-", ".").split("."))
    alike = difflib.get_close_matches(name.lower().replace("_", "."), known, n=3, cutoff=0.6)
    worded = sorted(candidate for candidate in known if words <= set(candidate.split(".")))
    return list(dict.fromkeys((*alike, *worded)))[:3]


def _setting(row: Any) -> Setting:
    """Build a setting. Synonyms are the same setting at other levels, in order of precedence."""
    synonyms = [
        (SettingSource(int(synonym.source)), _in_milliseconds(synonym.name, synonym.value)) for synonym in row.synonyms
    ]
    source = SettingSource(int(row.config_source))
    inherited = [value for origin, value in synonyms if origin is not SettingSource.TOPIC]
    return Setting(
        row.name,
        row.value,
        source,
        SettingType(int(getattr(row, "config_type", 0))),
        sensitive=row.is_sensitive,
        read_only=row.read_only,
        inherited=inherited[0] if inherited else None,
        default=next((value for origin, value in synonyms if origin is SettingSource.DEFAULT), None),
        documentation=getattr(row, "documentation", None),
    )


def _in_milliseconds(name: str, value: str | None) -> str | None:
    """Return the value of a synonym in milliseconds: some broker settings have another unit than the topic's."""
    factor = next((factor for suffix, factor in _OTHER_UNITS.items() if name.endswith(suffix)), None)
    return str(int(value) * factor) if factor and value is not None and value.isdigit() else value


def _sorted(settings: Iterable[Setting]) -> Settings:
    return {setting.name: setting for setting in sorted(settings, key=lambda setting: setting.name)}


def _normal(text: str, kind: SettingType) -> object:
    """Normalize a value for comparison, as brokers do: case of booleans, spaces and order in lists, leading zeros."""
    stripped = text.strip()
    if kind is SettingType.BOOLEAN:
        return stripped.lower()
    if kind is SettingType.LIST:
        # All lists of topics are sets: policies, replicas.
        return sorted({part.strip() for part in stripped.split(",") if part.strip()})
    if kind in _NUMBERS:
        try:
            return float(stripped) if kind is SettingType.DOUBLE else int(stripped)
        except ValueError:
            return stripped
    return stripped


def keeps_less(name: str, before: str | None, after: str | None) -> bool:
    """Return whether a change may make the brokers delete records that they would have kept."""
    if name == "cleanup.policy":
        return not {*(after or "").split(",")} <= {*(before or "").split(",")}
    if name not in ("retention.ms", "retention.bytes"):
        return False
    limits = [_limit(value) for value in (before, after)]
    return limits[1] < limits[0]


def _limit(value: str | None) -> float:
    try:
        number = int(value or "")
    except ValueError:  # unknown: the brokers may return anything
        return 0.0
    return math.inf if number == _NO_LIMIT else number
