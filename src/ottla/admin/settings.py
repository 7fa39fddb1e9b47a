"""Settings of topics: DescribeConfigs and IncrementalAlterConfigs requests and what their answers mean.

Topics and changes come in, kio requests go out; answers come in and become `Setting` values, an error for one topic
a BrokerError that repeats what the broker said. Pure: `Admin` does the sending and waiting.
"""

from __future__ import annotations

import difflib
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
_OTHER_UNITS = {".hours": 3_600_000, ".minutes": 60_000}

Settings = dict[str, "Setting"]
"""The settings of one topic, by name."""
Changes = Mapping[str, str | None]
"""New values by name; None takes a topic's own value away, so that the brokers' counts again."""


class SettingSource(Enum):
    """Where a value comes from; the value is the protocol's."""

    UNKNOWN = 0
    TOPIC = 1
    BROKER = 2
    ALL_BROKERS = 3
    FILE = 4
    DEFAULT = 5

    @classmethod
    def _missing_(cls, value: object) -> SettingSource:
        return cls.UNKNOWN


class SettingType(Enum):
    """What a value is; the value is the protocol's."""

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
    """One setting of a topic as the broker sees it. `value` is None where it is sensitive."""

    name: str
    value: str | None
    source: SettingSource = SettingSource.UNKNOWN
    type: SettingType = SettingType.UNKNOWN
    sensitive: bool = False
    read_only: bool = False
    inherited: str | None = None
    """What would count without the topic's own value; None where the broker does not tell."""
    default: str | None = None
    """Kafka's own default; None where the broker does not tell."""
    documentation: str | None = None

    @property
    def is_default(self) -> bool:
        """Whether nobody has set it, neither for the topic nor for the brokers, to another value."""
        return self.source is SettingSource.DEFAULT or (
            self.source is not SettingSource.TOPIC and self.value == self.default
        )

    def means(self, text: str) -> bool:
        """Whether `text` is another way to write this value: the broker answers in a form of its own."""
        if self.value is None:
            return self.sensitive
        return _normal(self.value, self.type) == _normal(text, self.type)


def build_describe(
    version_of: VersionOf, topics: Collection[str], *, only: Collection[str] | None = None
) -> messages.Message:
    """A DescribeConfigs request for topics; `only` names the settings wanted (None: all)."""
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
    """The settings of each topic, sorted by name."""
    for result in response.results:
        if result.error_code is not ErrorCode.none:
            what = f"describing the settings of topic {result.resource_name}"
            raise BrokerError(result.error_code, what, result.error_message)
    return {result.resource_name: _sorted(_setting(row) for row in result.configs) for result in response.results}


def from_created(configs: Iterable[Any] | None) -> Settings:
    """The settings in the answer to CreateTopics (KIP-525); none where the user may not see them."""
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
    """An IncrementalAlterConfigs request (KIP-339); what it does not name stays as it is."""
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
    """Raises the topic's error."""
    for row in response.responses:
        if row.error_code is not ErrorCode.none:
            raise BrokerError(row.error_code, f"altering settings of topic {row.resource_name}", row.error_message)


def not_yet(response: Any, topic: str, changes: Changes) -> BrokerError | None:
    """Which change a broker has not heard of yet, by its answer to DescribeConfigs, or None when it has."""
    settings = read_describe(response).get(topic, {})
    for name, wanted in changes.items():
        setting = settings.get(name)
        own = setting is not None and setting.source is SettingSource.TOPIC
        known = not own if wanted is None else setting is not None and own and setting.means(wanted)
        if not known:
            return BrokerError(ErrorCode.request_timed_out, f"{name} of topic {topic} is set, but not on every broker")
    return None


def refuse_unknown(names: Iterable[str], known: Collection[str]) -> None:
    """ConfigError for a name that is not known, with the nearest ones that are. Without known ones all pass."""
    for name in names:
        # Kafka does not list the ones for its own tests, but takes them.
        if known and name not in known and not name.startswith("internal."):
            near = nearest(name, known)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(sorted(known))}"
            raise ConfigError(f"topics have no setting {name!r}: {hint}")


def nearest(name: str, known: Collection[str]) -> list[str]:
    """Up to three known names that are like this one: spelled alike, or with all of its words in them."""
    words = set(name.lower().replace("_", ".").replace("-", ".").split("."))
    alike = difflib.get_close_matches(name.lower().replace("_", "."), known, n=3, cutoff=0.6)
    worded = sorted(other for other in known if words <= set(other.split(".")))
    return list(dict.fromkeys((*alike, *worded)))[:3]


def _setting(row: Any) -> Setting:
    synonyms = [(SettingSource(int(one.source)), _in_milliseconds(one.name, one.value)) for one in row.synonyms]
    source = SettingSource(int(row.config_source))
    without = [value for where, value in synonyms if where is not SettingSource.TOPIC]
    return Setting(
        row.name,
        row.value,
        source,
        SettingType(int(getattr(row, "config_type", 0))),
        sensitive=row.is_sensitive,
        read_only=row.read_only,
        inherited=without[0] if without else None,
        default=next((value for where, value in synonyms if where is SettingSource.DEFAULT), None),
        documentation=getattr(row, "documentation", None),
    )


def _in_milliseconds(name: str, value: str | None) -> str | None:
    """The value of a synonym; some of those of the brokers have another unit than the topic's."""
    factor = next((factor for suffix, factor in _OTHER_UNITS.items() if name.endswith(suffix)), None)
    return str(int(value) * factor) if factor and value is not None and value.isdigit() else value


def _sorted(settings: Iterable[Setting]) -> Settings:
    return {setting.name: setting for setting in sorted(settings, key=lambda one: one.name)}


def _normal(text: str, kind: SettingType) -> object:
    stripped = text.strip()
    if kind is SettingType.BOOLEAN:
        return stripped.lower()
    if kind is SettingType.LIST:
        return [part.strip() for part in stripped.split(",") if part.strip()]
    if kind in _NUMBERS:
        try:
            return float(stripped) if kind is SettingType.DOUBLE else int(stripped)
        except ValueError:
            return stripped
    return stripped
