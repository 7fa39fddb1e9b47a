"""Settings of topics as values: which are defaults, which values are equal, which names are similar."""

from __future__ import annotations

import pytest

from ottla.admin import Setting, SettingSource, SettingType
from ottla.admin.settings import nearest, refuse_unknown
from ottla.errors import ConfigError

KNOWN = ("cleanup.policy", "retention.ms", "retention.bytes", "max.message.bytes", "delete.retention.ms", "segment.ms")


@pytest.mark.parametrize(
    ("source", "value", "default", "is_default"),
    [
        (SettingSource.DEFAULT, "1", "1", True),
        (SettingSource.DEFAULT, "1", None, True),
        (SettingSource.TOPIC, "1", "1", False),
        (SettingSource.FILE, "2", "1", False),
        (SettingSource.ALL_BROKERS, "1", "1", True),
        (SettingSource.FILE, "2", None, False),
    ],
)
def test_a_default_is_a_value_that_was_not_changed(
    source: SettingSource, value: str, default: str | None, is_default: bool
) -> None:
    assert Setting("a", value, source, default=default).is_default is is_default


@pytest.mark.parametrize(
    ("kind", "value", "text", "same"),
    [
        (SettingType.LONG, "5", " 5", True),
        (SettingType.LONG, "5", "6", False),
        (SettingType.LONG, "5", "soon", False),
        (SettingType.DOUBLE, "0.5", "0.50", True),
        (SettingType.BOOLEAN, "true", "TRUE", True),
        (SettingType.LIST, "compact,delete", "compact, delete", True),
        (SettingType.LIST, "compact,delete", "delete,compact", True),
        (SettingType.LIST, "", "", True),
        (SettingType.LIST, "compact", "delete", False),
        (SettingType.STRING, "Zstd", "zstd", False),
    ],
)
def test_the_brokers_way_to_write_a_value_is_recognised(kind: SettingType, value: str, text: str, same: bool) -> None:
    assert Setting("a", value, type=kind).means(text) is same


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("retention.m", "retention.ms"),
        ("Retention_MS", "retention.ms"),
        ("retntion.byte", "retention.bytes"),
        ("retention", "delete.retention.ms"),
        ("policy", "cleanup.policy"),
        ("max.mesage.bytes", "max.message.bytes"),
    ],
)
def test_a_misspelled_setting_is_refused_with_the_nearest_names(name: str, first: str) -> None:
    assert first in nearest(name, KNOWN)
    with pytest.raises(ConfigError, match=f"no setting '{name}': did you mean .*{first}"):
        refuse_unknown(["retention.ms", name], KNOWN)


def test_a_setting_like_no_other_is_refused_with_all_names() -> None:
    with pytest.raises(ConfigError, match=r"no setting 'xyz': there are cleanup.policy, delete.retention.ms,"):
        refuse_unknown(["xyz"], KNOWN)


def test_known_settings_pass_and_so_does_everything_where_none_are_known() -> None:
    refuse_unknown(KNOWN, KNOWN)
    refuse_unknown(["internal.segment.bytes"], KNOWN)
    refuse_unknown(["anything"], ())
