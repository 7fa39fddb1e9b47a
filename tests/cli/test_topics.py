"""`ottla topics` on three real brokers: what it shows, changes and refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import Result
from tests.admin.members import fill
from tests.waiting import eventually

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.testing import FakeKafka

from .commands import run

pytestmark = pytest.mark.broker

NAME = "cli-topic"


@pytest.fixture(scope="module")
def admin(kafka: LocalCluster) -> Iterator[Admin]:
    with Admin(kafka.bootstrap) as opened:
        yield opened


@pytest.fixture
def topic(admin: Admin) -> Iterator[str]:
    admin.create_topic(NAME, partitions=2, replicas=3, settings={"retention.ms": "3600000"})
    yield NAME
    admin.delete_topics(NAME)


def _run(kafka: LocalCluster, *arguments: str) -> Result:
    return run("topics", *arguments, "--bootstrap", kafka.bootstrap)


def _json(kafka: LocalCluster, *arguments: str) -> Any:
    result = _run(kafka, *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def _settings(kafka: LocalCluster, name: str) -> dict[str, dict[str, Any]]:
    [topic] = _json(kafka, "describe", name)
    return {setting["name"]: setting for setting in topic["settings"]}


def test_topics_are_listed_by_name_or_with_what_they_hold(kafka: LocalCluster, topic: str) -> None:
    fill(kafka.bootstrap, topic, {0: 30, 1: 12})
    assert topic in _run(kafka, "list").stdout.splitlines()
    assert topic in _json(kafka, "list")
    [line] = [one for one in _run(kafka, "list", "--long").stdout.splitlines() if one.startswith(f"{topic} ")]
    assert line.split()[1:4] == ["2", "3", "42"]
    assert line.endswith("ok")
    [found] = [one for one in _json(kafka, "list", "--long") if one["name"] == topic]
    assert found["records_estimate"] == 42
    assert found["size_bytes"] > 1000


def test_describe_shows_what_is_not_default_and_every_partition(kafka: LocalCluster, topic: str) -> None:
    fill(kafka.bootstrap, topic, {1: 12})
    lines = _run(kafka, "describe", topic).stdout.splitlines()
    assert lines[0].startswith(f"{topic}: 2 partitions, 3 replicas, about 12 records, ")
    assert "retention: 1h" in lines[1]
    [retention] = [line for line in lines if line.split()[0] == "retention.ms"]
    assert retention.split()[1:3] == ["3600000", "(1h)"]
    assert not [line for line in lines if line.split()[0] == "max.message.bytes"]
    assert lines[-1].split()[0] == "1"
    assert lines[-1].split()[4:7] == ["0", "12", "12"]


def test_describe_as_json_loses_nothing(kafka: LocalCluster, topic: str) -> None:
    fill(kafka.bootstrap, topic, {1: 12})
    [found] = _json(kafka, "describe", topic)
    assert found["name"] == topic
    assert len(found["settings"]) > 20
    partition = found["partitions"][1]
    assert (partition["start"], partition["stop"], partition["partition"]) == (0, 12, 1)
    assert sorted(partition["replicas"]) == sorted(partition["in_sync"]) == [1, 2, 3]
    assert [copy["broker"] for copy in partition["copies"]] == [1, 2, 3]
    assert partition["leader"] == partition["replicas"][0]
    assert partition["faults"] == []


def test_a_topic_is_created_with_settings_in_human_units(kafka: LocalCluster, admin: Admin) -> None:
    human = (
        "--retention",
        "4d",
        "--retention-size",
        "50GB",
        "--cleanup",
        "compact,delete",
        "--max-message-size",
        "2MB",
    )
    result = _run(kafka, "create", "cli-human", "--partitions", "3", *human, "--setting", "segment.ms=3600000")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == "created cli-human with 3 partitions\n"
    found = {name: setting["value"] for name, setting in _settings(kafka, "cli-human").items()}
    assert found["retention.ms"] == "345600000"
    assert found["retention.bytes"] == "50000000000"
    assert found["cleanup.policy"] == "compact,delete"
    assert found["max.message.bytes"] == "2000000"
    assert found["segment.ms"] == "3600000"
    assert _run(kafka, "alter", "cli-human", "--retention", "forever", "--retention-size", "unlimited").exit_code == 0
    found = {name: setting["value"] for name, setting in _settings(kafka, "cli-human").items()}
    assert (found["retention.ms"], found["retention.bytes"]) == ("-1", "-1")
    admin.delete_topics("cli-human")


def test_a_dry_run_creates_alters_and_grows_nothing(kafka: LocalCluster, admin: Admin, topic: str) -> None:
    assert _run(kafka, "create", "cli-dry", "--retention", "4d", "--dry-run").stdout.startswith("would create cli-dry")
    assert "cli-dry" not in admin.topic_names()
    altered = _run(kafka, "alter", topic, "--unset", "retention.ms", "--max-message-size", "2MB", "--dry-run")
    rows = [line.split() for line in altered.stdout.splitlines()]
    assert ["retention.ms", "3600000", "(1h)", "604800000", "(7d)"] in rows
    assert ["max.message.bytes", "1048588", "(1.0MB)", "2000000", "(2MB)"] in rows
    assert admin.settings(topic)[topic]["retention.ms"].value == "3600000"
    grown = _run(kafka, "add-partitions", topic, "--total", "5", "--dry-run")
    assert grown.stdout == f"{topic} would have 5 partitions, 2 before\n"
    assert len(admin.describe_topics(topic)[0].partitions) == 2


def test_alter_shows_before_and_after_and_leaves_the_rest(kafka: LocalCluster, topic: str) -> None:
    found = _json(kafka, "alter", topic, "--cleanup", "compact", "--setting", "segment.bytes=2000000", "--yes")
    assert found["changes"] == [
        {"setting": "segment.bytes", "before": "1073741824", "after": "2000000"},
        {"setting": "cleanup.policy", "before": "delete", "after": "compact"},
    ]
    settings = _settings(kafka, topic)
    assert settings["retention.ms"]["value"] == "3600000"
    assert settings["cleanup.policy"]["source"] == "topic"


def test_partitions_are_added(kafka: LocalCluster, topic: str) -> None:
    assert _run(kafka, "add-partitions", topic, "--total", "5").stdout == f"{topic} has 5 partitions, 2 before\n"
    assert len(_json(kafka, "describe", topic)[0]["partitions"]) == 5


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("create", "cli-x", "--setting", "retention.m=5"), 2, "no setting 'retention.m': did you mean retention.ms"),
        (("create", "cli-x", "--setting", "retention.ms=soon"), 1, "Invalid value soon for configuration retention.ms"),
        (("create", "cli-x", "--retention", "soon"), 2, "'soon' is not a duration: use 90s"),
        (("create", "cli-x", "--retention-size", "big"), 2, "'big' is not a size: use"),
        (("create", "cli-x", "--cleanup", "shred"), 2, "use delete, compact or compact,delete"),
        (("create", "cli-x", "--retention", "4d", "--setting", "retention.ms=5"), 2, "they are the same setting"),
        (("create", "cli-x", "--replicas", "9"), 1, "between 1 and the number of brokers that are up"),
        (("create", "no good"), 2, "error: TOPIC: 'no good' is not a topic name"),
        (("create", NAME), 1, "TOPIC_ALREADY_EXISTS"),
        (("alter", NAME), 2, "nothing to alter"),
        (("alter", NAME, "--unset", "retntion.ms"), 2, "did you mean retention.ms"),
        (("alter", NAME, "--unset", "retention.ms", "--retention", "4d"), 2, "retention.ms is both set and unset"),
        (("alter", NAME, "--setting", "retention.ms=soon"), 1, "Invalid value soon for configuration retention.ms"),
        (("alter", "cli-missing", "--retention", "4d"), 1, "describing topic cli-missing: UNKNOWN_TOPIC_OR_PARTITION"),
        (
            ("add-partitions", NAME, "--total", "1"),
            2,
            f"topic {NAME} has 2 partitions, --total 1: partitions can only be added",
        ),
        (("add-partitions", NAME, "--total", "2"), 2, "nothing to add"),
        (("add-partitions", "cli-missing", "--total", "2"), 1, "describing topic cli-missing: UNKNOWN_TOPIC"),
        (("describe", "cli-missing"), 1, "describing topic cli-missing: UNKNOWN_TOPIC_OR_PARTITION"),
        (("delete", "cli-missing", "--yes"), 1, "describing topic cli-missing: UNKNOWN_TOPIC_OR_PARTITION"),
    ],
)
def test_what_is_wrong_is_said_once_and_changes_nothing(
    kafka: LocalCluster, admin: Admin, topic: str, arguments: tuple[str, ...], code: int, text: str
) -> None:
    before = admin.settings(topic)
    result = _run(kafka, *arguments)
    assert result.exit_code == code
    assert text in " ".join(result.stderr.split())
    assert result.stdout == ""
    assert admin.settings(topic) == before
    assert "cli-x" not in admin.topic_names()


@pytest.mark.slow
def test_a_broker_that_is_away_is_said_and_spoils_nothing_else(brokers_to_break: LocalCluster) -> None:
    kafka = brokers_to_break
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic("cli-away", assignments=[[3, 1], [1, 3]])
        admin.create_topic("cli-lost", assignments=[[3]])
        fill(kafka.bootstrap, "cli-away", {0: 10, 1: 10})
        kafka.kill(3)
        try:
            eventually(lambda: 3 not in admin.cluster.metadata().brokers, "broker 3 is still listed")
            eventually(lambda: admin.describe_topics("cli-away")[0].partitions[0].leader == 1, "no new leader")
            away, lost = _json(kafka, "describe", "cli-away", "cli-lost")
            shown = _run(kafka, "describe", "cli-away").stdout
            overview = _run(kafka, "list", "--long").stdout.splitlines()
            listed = run("groups", "list", "--bootstrap", kafka.bootstrap)
        finally:
            kafka.restart(3)
        moved, kept = away["partitions"]
        assert moved["leader"] == kept["leader"] == 1
        assert moved["faults"][0] == "not led by the preferred 3"
        assert moved["faults"][-1] == "under-replicated: 3 not in sync"
        assert kept["faults"] == ["under-replicated: 3 not in sync"]
        assert (kept["stop"], [copy["broker"] for copy in kept["copies"]]) == (10, [1])
        assert list(away["brokers_away"]) == list(lost["brokers_away"]) == ["3"]
        [partition] = lost["partitions"]
        assert (partition["leader"], partition["stop"], partition["size_bytes"]) == (None, None, None)
        assert partition["faults"][0] == "no leader"
        assert "broker 3 did not return sizes: not among the brokers of the cluster at the moment" in shown
        assert [line for line in overview if line.startswith("cli-away ") and line.endswith("2 under-replicated")]
        assert [line for line in overview if line.startswith("cli-lost ") and "1 without leader" in line]
        assert listed.exit_code == 0, listed.stderr
        eventually(lambda: len(admin.describe_topics("cli-away")[0].partitions[0].isr) == 2, "broker 3 is not in sync")
        admin.delete_topics(["cli-away", "cli-lost"])


def test_a_cluster_without_topics_says_so_and_is_no_error() -> None:
    with FakeKafka(auto_create=None) as fake:
        result = run("topics", "list", "--bootstrap", fake.bootstrap)
        assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no topics\n")
        assert run("topics", "list", "--bootstrap", fake.bootstrap, "--json").stdout == "[]\n"


def test_it_works_through_tls_and_scram(kafka: LocalCluster, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kafka.secure_bootstrap is not None
    user, password = next(iter(kafka.status().users.items()))
    monkeypatch.setenv("OTTLA_PASSWORD", password)
    secure = ("--bootstrap", kafka.secure_bootstrap, "--ca-file", str(kafka.status().ca_file), "--username", user)
    for command in (
        ("topics", "describe", topic),
        ("groups", "list"),
        ("topics", "alter", topic, "--retention", "2h", "--yes"),
    ):
        result = run(*command, *secure)
        assert result.exit_code == 0, result.stderr
