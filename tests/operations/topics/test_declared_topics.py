"""Declared topics on paper: files, names, differences, and what is held back."""

from __future__ import annotations

import tomllib
import uuid
from collections.abc import Collection
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.admin.settings import Setting, SettingSource, SettingType
from ottla.admin.topics import TopicDescription
from ottla.errors import ConfigError
from ottla.operations.topics import Action, Allow, Declaration, DeclaredTopic, LiveTopic, diff, export, read_declaration
from ottla.operations.topics.applying import is_internal

CLUSTER = 'cluster = "c1"\n'


def _own(**values: str) -> dict[str, Setting]:
    names = {key.replace("_", "."): value for key, value in values.items()}
    return {key: Setting(key, value, SettingSource.TOPIC, SettingType.LONG) for key, value in names.items()}


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "topics.toml"
    path.write_text(text)
    return path


def _read(tmp_path: Path, text: str) -> dict[str, DeclaredTopic]:
    return {topic.name: topic for topic in read_declaration(_file(tmp_path, CLUSTER + text)).topics}


def _actions(declared: DeclaredTopic, live: LiveTopic | None, allowed: Collection[Allow] = ()) -> list[str]:
    plan = diff(Declaration("c1", (declared,)), [] if live is None else [live], brokers=3, allowed=allowed)
    return [
        f"{change.action}{' ' + change.what if change.what else ''}{' held' if change.is_held else ''}"
        for change in plan.changes
    ]


def test_a_file_has_defaults_and_values_with_units_dotted_or_quoted(tmp_path: Path) -> None:
    topics = _read(
        tmp_path,
        """
        [defaults]
        partitions = 6
        replicas = 3
        [defaults.settings]
        retention.ms = "4d"
        "retention.bytes" = "unlimited"
        [topics.clicks]
        partitions = 12
        [topics.clicks.settings]
        retention.ms = "12h"
        segment.bytes = "64MiB"
        cleanup.policy = ["compact", "delete"]
        preallocate = false
        min.cleanable.dirty.ratio = 0.25
        max.message.bytes = "1000"
        [topics."shop.orders"]
        """,
    )
    assert topics["shop.orders"] == DeclaredTopic(
        "shop.orders", 6, 3, {"retention.ms": "345600000", "retention.bytes": "-1"}
    )
    assert topics["clicks"].partitions == 12
    assert topics["clicks"].settings == {
        "retention.ms": "43200000",
        "retention.bytes": "-1",
        "segment.bytes": str(64 << 20),
        "cleanup.policy": "compact,delete",
        "preallocate": "false",
        "min.cleanable.dirty.ratio": "0.25",
        "max.message.bytes": "1000",
    }


def test_a_topic_of_sites_is_declared_for_each(tmp_path: Path) -> None:
    topics = _read(
        tmp_path,
        """
        [naming]
        pattern = "{site}.{topic}"
        sites = ["oslo", "rome"]
        allowed = "[a-z]+([.][a-z]+)?"
        [topics.clicks]
        sites = true
        partitions = 2
        [topics.audit]
        [topics.orders]
        sites = ["rome"]
        """,
    )
    assert sorted(topics) == ["audit", "oslo.clicks", "rome.clicks", "rome.orders"]
    assert topics["rome.clicks"].partitions == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no cluster: write cluster = ID"),
        ("cluster = 5", "cluster must be a text, got 5"),
        ("cluster = ", "is not TOML: Invalid value (at end of document)"),
        (CLUSTER + "[topics.clicks\n", r"is not TOML: Expected ']' at the end of a table declaration (at line 2"),
        (CLUSTER + "[topic.clicks]", "has an unknown key 'topic': did you mean 'topics'?"),
        (CLUSTER + "[topics.clicks]\npartition = 3", "[topics.clicks] has an unknown key 'partition': did you mean"),
        (CLUSTER + "[topics.clicks]\npartitions = 0", "[topics.clicks] partitions must be 1 to 1048576, got 0"),
        (CLUSTER + "[topics.clicks]\nreplicas = '3'", "[topics.clicks] replicas must be a whole number, got a text"),
        (CLUSTER + "[topics.clicks]\nsettings = {retention.ms = 'soon'}", "retention.ms: 'soon' is not a duration"),
        (CLUSTER + "[topics.clicks.settings]\nretention.ms = [1]", "retention.ms must be a text, a number"),
        (CLUSTER + "[topics.shop.orders]\npartitions = 1", 'needs quotes, such as [topics."shop.orders"]'),
        (CLUSTER + "[topics.'a b']", "'a b' cannot be the name of a topic"),
        (CLUSTER + "[naming]\nallowed = '[a-z]+'\n[topics.Clicks]", "the name 'Clicks' breaks the rule '[a-z]+'"),
        (CLUSTER + "[naming]\nallowed = '[a-z'", "'[a-z' is not a regular expression"),
        (CLUSTER + "[naming]\npattern = '{topic}'", "the pattern '{topic}' must have {site} and {topic}"),
        (CLUSTER + "[naming]\npattern = '{site}.{topic}.{x}'", "and no other field"),
        (CLUSTER + "[topics.clicks]\nsites = true", "is for sites, and [naming] has no sites"),
        (CLUSTER + "[naming]\nsites = ['oslo']\n[topics.clicks]\nsites = ['rome']", "'rome' is not a site: there are"),
        (
            CLUSTER + "[naming]\nsites = ['a']\n[topics.clicks]\nsites = true\n[topics.'a.clicks']",
            "declares topic a.clicks, which is declared already",
        ),
    ],
)
def test_what_is_wrong_in_a_file_is_said_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    path = _file(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_declaration(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_declaration(tmp_path / "nothing.toml")


def test_a_setting_with_and_without_quotes_is_there_twice(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\[topics.a.settings\] has retention.ms twice"):
        _read(tmp_path, '[topics.a.settings]\n"retention.ms" = 1\nretention.ms = 2')


def test_whole_numbers_may_be_written_with_an_exponent(tmp_path: Path) -> None:
    text = "[topics.a.settings]\nretention.bytes = 1e9\nmin.cleanable.dirty.ratio = 0.5"
    assert _read(tmp_path, text)["a"].settings == {
        "retention.bytes": "1000000000",
        "min.cleanable.dirty.ratio": "0.5",
    }


def test_throttles_of_moves_are_no_business_of_a_file() -> None:
    throttles = _own(leader_replication_throttled_replicas="0:1", follower_replication_throttled_replicas="*")
    live = LiveTopic("a", 1, 1, throttles)
    assert _actions(DeclaredTopic("a"), live, [Allow.SETTINGS]) == []
    assert "throttled" not in export("c1", [live])


def test_topics_that_kafka_keeps_something_in_are_internal() -> None:
    def described(name: str, *, internal: bool) -> TopicDescription:
        return TopicDescription(name, uuid.UUID(int=1), internal, ())

    assert is_internal(described("__consumer_offsets", internal=True))
    assert is_internal(described("__remote_log_metadata", internal=False))
    assert not is_internal(described("__mine", internal=False))


def test_differences_of_a_topic() -> None:
    wanted = DeclaredTopic("t", 4, 3, {"retention.ms": "1000"})
    same = LiveTopic("t", 4, 3, _own(retention_ms="1000"))
    assert _actions(wanted, same) == []
    assert _actions(wanted, None) == ["create"]
    assert _actions(wanted, LiveTopic("t", 2, 3, same.settings)) == ["grow partitions"]
    assert _actions(wanted, LiveTopic("t", 5, 3, same.settings)) == ["impossible partitions held"]
    assert _actions(wanted, LiveTopic("t", 4, 1, same.settings)) == ["replicas replicas held"]
    assert _actions(DeclaredTopic("t", 4, 5), None) == ["impossible replicas held"]
    assert _actions(DeclaredTopic("t"), LiveTopic("t", 9, 2)) == [], "what is not declared stays"


def test_an_inherited_value_becomes_the_topics_own() -> None:
    default = {"retention.ms": Setting("retention.ms", "1000", SettingSource.DEFAULT, SettingType.LONG)}
    assert _actions(DeclaredTopic("t", settings={"retention.ms": "1000"}), LiveTopic("t", 1, 1, default)) == [
        "alter retention.ms"
    ]


@pytest.mark.parametrize(
    ("before", "after", "is_held"),
    [("1000", "999", True), ("1000", "1001", False), ("-1", "1000", True), ("1000", "-1", False)],
)
def test_what_deletes_records_needs_permission(before: str, after: str, is_held: bool) -> None:
    wanted, live = DeclaredTopic("t", settings={"retention.ms": after}), LiveTopic("t", 1, 1, _own(retention_ms=before))
    held = " held" if is_held else ""
    assert _actions(wanted, live) == [f"alter retention.ms{held}"]
    assert _actions(wanted, live, [Allow.DATA]) == ["alter retention.ms"]


def test_settings_that_the_file_does_not_have_are_removed_with_permission_only() -> None:
    forever = _own(retention_ms="-1")
    assert _actions(DeclaredTopic("t"), LiveTopic("t", 1, 1, forever)) == ["unset retention.ms held"]
    # What applies then is shorter, or unknown.
    assert _actions(DeclaredTopic("t"), LiveTopic("t", 1, 1, forever), [Allow.SETTINGS]) == ["unset retention.ms held"]
    both = [Allow.SETTINGS, Allow.DATA]
    assert _actions(DeclaredTopic("t"), LiveTopic("t", 1, 1, forever), both) == ["unset retention.ms"]
    harmless = LiveTopic("t", 1, 1, _own(flush_ms="5"))
    assert _actions(DeclaredTopic("t"), harmless, [Allow.SETTINGS]) == ["unset flush.ms"]


def test_topics_that_the_file_does_not_have_stay_unless_allowed() -> None:
    live = [LiveTopic("old", 1, 1), LiveTopic("__internal", 1, 1, is_internal=True)]
    plan = diff(Declaration("c1"), live, brokers=1)
    assert (plan.changes, plan.undeclared) == ((), ("old",))
    plan = diff(Declaration("c1"), live, brokers=1, allowed=[Allow.TOPICS])
    assert [(change.action, change.topic) for change in plan.to_apply] == [(Action.DELETE, "old")]
    assert plan.undeclared == ()


_names = st.from_regex(r"[A-Za-z0-9._-]{1,30}", fullmatch=True).filter(lambda name: name not in (".", ".."))
_values = st.one_of(
    st.integers(-1, 1 << 62).map(str), st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=20)
)
_settings = st.dictionaries(
    st.sampled_from(["retention.ms", "segment.bytes", "cleanup.policy", "compression.type"]),
    _values,
)
_topics = st.builds(
    lambda name, partitions, replicas, settings: LiveTopic(
        name,
        partitions,
        replicas,
        {key: Setting(key, value, SettingSource.TOPIC, SettingType.STRING) for key, value in settings.items()},
    ),
    _names,
    st.integers(1, 1000),
    st.integers(1, 3),
    _settings,
)


@given(st.lists(_topics, max_size=4, unique_by=lambda topic: topic.name), st.text(max_size=30).filter(str.strip))
def test_what_was_exported_differs_in_nothing(
    tmp_path_factory: pytest.TempPathFactory, topics: list[LiveTopic], cluster_id: str
) -> None:
    text = export(cluster_id, topics)
    assert tomllib.loads(text)["cluster"] == cluster_id
    for topic in topics:
        for key, setting in topic.settings.items():
            assert tomllib.loads(text)["topics"][topic.name]["settings"][key] is not None, setting
    path = tmp_path_factory.mktemp("exported") / "topics.toml"
    path.write_text(text, encoding="utf-8")
    # Brokers have no such texts in settings with a unit, which may be written in other ways.
    if any(
        not setting.value.lstrip("-").isdecimal()
        for topic in topics
        for key, setting in topic.settings.items()
        if key.endswith((".ms", ".bytes")) and setting.value is not None
    ):
        return
    plan = diff(read_declaration(path), topics, brokers=3)
    assert plan.changes == ()
    assert plan.undeclared == ()
