"""`ottla topics diff`, `apply` and `export` on real brokers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from ottla.admin import Admin
from ottla.cluster import LocalCluster

from .commands import run

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def admin(kafka: LocalCluster) -> Iterator[Admin]:
    with Admin(kafka.bootstrap) as opened:
        yield opened


@pytest.fixture
def remove(admin: Admin) -> Iterator[list[str]]:
    """Topics to delete at the end."""
    names: list[str] = []
    yield names
    present = {*admin.topic_names()}
    admin.delete_topics([name for name in names if name in present])


def _run(kafka: LocalCluster, command: str, *arguments: object) -> Result:
    return run("topics", command, *map(str, arguments), "--bootstrap", kafka.bootstrap)


def _json(kafka: LocalCluster, command: str, *arguments: object) -> Any:
    result = _run(kafka, command, *arguments, "--json")
    assert result.stdout, result.stderr
    return json.loads(result.stdout)


def _file(admin: Admin, tmp_path: Path, text: str) -> Path:
    cluster_id = admin.cluster.metadata().cluster_id
    path = tmp_path / "topics.toml"
    path.write_text(f'cluster = "{cluster_id}"\n{text}')
    return path


def test_a_file_is_applied_reported_and_then_differs_in_nothing(
    kafka: LocalCluster, admin: Admin, tmp_path: Path, remove: list[str]
) -> None:
    remove += ["oslo.declared", "rome.declared", "declared-grows"]
    admin.create_topic("declared-grows", partitions=1, replicas=1, settings={"retention.ms": "5000"})
    path = _file(
        admin,
        tmp_path,
        """
        [naming]
        sites = ["oslo", "rome"]
        [topics.declared]
        sites = true
        partitions = 2
        replicas = 1
        settings = { retention.ms = "1h", cleanup.policy = "delete" }
        [topics.declared-grows]
        partitions = 3
        settings = { retention.ms = "6s" }
        """,
    )
    after = _run(kafka, "diff", path)
    assert after.exit_code == 3, after.stderr
    dry = _run(kafka, "apply", path, "--dry-run")
    assert dry.exit_code == 0
    assert "oslo.declared" not in admin.topic_names()
    asked = _run(kafka, "apply", path)
    assert asked.exit_code == 2
    assert "this changes topics of cluster" in asked.stderr
    assert "pass --yes to confirm" in asked.stderr
    assert "oslo.declared" not in admin.topic_names()
    done = _run(kafka, "apply", path, "--yes")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines() == [
        "created oslo.declared: 2 partitions, 1 replica, cleanup.policy=delete, retention.ms=3600000",
        "created rome.declared: 2 partitions, 1 replica, cleanup.policy=delete, retention.ms=3600000",
        "grown declared-grows partitions from 1 to 3",
        "altered declared-grows retention.ms from 5000 (5s) to 6000 (6s)",
    ]
    again = _run(kafka, "diff", path)
    assert (again.exit_code, again.stdout.startswith("3 unchanged")) == (0, True)
    assert _json(kafka, "apply", path, "--yes")["applied"] == []
    [topic] = admin.describe_topics("declared-grows")
    assert (len(topic.partitions), admin.settings(topic.name)[topic.name]["retention.ms"].value) == (3, "6000")


def test_nothing_is_lost_without_its_option(
    kafka: LocalCluster, admin: Admin, tmp_path: Path, remove: list[str]
) -> None:
    remove += ["declared-kept"]
    own = {"retention.ms": "60000000", "segment.ms": "7000"}
    admin.create_topic("declared-kept", replicas=1, settings=own)
    path = _file(admin, tmp_path, "[topics.declared-kept]\nsettings = { retention.ms = '1s' }")
    held = _run(kafka, "apply", path, "--yes")
    assert held.exit_code == 0
    assert "needs --allow-data-loss" in held.stdout
    assert "needs --delete-settings" in held.stdout
    present = admin.settings("declared-kept")["declared-kept"]
    assert {name: present[name].value for name in own} == own
    after = _run(kafka, "diff", path)
    assert after.exit_code == 3, after.stderr
    done = _run(kafka, "apply", path, "--yes", "--allow-data-loss", "--delete-settings")
    assert done.exit_code == 0, done.stderr
    present = admin.settings("declared-kept")["declared-kept"]
    assert present["retention.ms"].value == "1000"
    assert present["segment.ms"].value != "7000"
    assert _run(kafka, "diff", path).exit_code == 0


def test_what_was_exported_differs_in_nothing(
    kafka: LocalCluster, admin: Admin, tmp_path: Path, remove: list[str]
) -> None:
    remove += ["declared.export", "declared.other"]
    settings = {"cleanup.policy": "compact,delete", "retention.ms": "-1", "min.cleanable.dirty.ratio": "0.25"}
    admin.create_topic("declared.export", partitions=3, replicas=2, settings=settings)
    admin.create_topic("declared.other", replicas=1)
    path = tmp_path / "exported.toml"
    exported = _run(kafka, "export", "declared.ex*", "--output", path)
    assert exported.exit_code == 0, exported.stderr
    assert "1 topic written" in exported.stderr
    again = _run(kafka, "export", "declared.ex*", "--output", path)
    assert (again.exit_code, "exists already" in again.stderr) == (1, True)
    plan = _json(kafka, "diff", path)
    assert plan["changes"] == []
    assert plan["unchanged"] == ["declared.export"]
    assert "declared.other" in plan["undeclared"]
    assert _run(kafka, "export", "declared.ex*").stdout == path.read_text()
    admin.alter_settings("declared.export", {"retention.ms": "99"})
    [change] = _json(kafka, "diff", path)["changes"]
    assert (change["action"], change["before"], change["after"], change["needs"]) == ("alter", "99", "-1", None)


def test_undeclared_topics_are_deleted_only_when_asked(tmp_path: Path) -> None:
    """On brokers of its own: it deletes every topic that the file does not have."""
    with (
        LocalCluster("declared", brokers=1, dir=tmp_path, heap_bytes=256 << 20) as kafka,
        Admin(kafka.bootstrap) as own,
    ):
        own.create_topic("stays")
        own.create_topic("goes")
        path = _file(own, tmp_path, "[topics.stays]")
        assert _run(kafka, "apply", path, "--yes").exit_code == 0
        assert own.topic_names() == ["goes", "stays"]
        asked = _run(kafka, "apply", path, "--delete-topics")
        assert (asked.exit_code, "1 delete" in asked.stderr) == (2, True)
        assert own.topic_names() == ["goes", "stays"]
        assert _run(kafka, "apply", path, "--delete-topics", "--yes").stdout == "deleted goes\n"
        assert own.topic_names() == ["stays"]


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("[topics.declared-bad]\nreplicas = 9", 1, "the cluster has 3 brokers"),
        ("[topics.declared-bad]\nsettings = { retention.mss = 1 }", 2, "have no setting 'retention.mss': did you mean"),
        ("[topics.declared-bad]\nsettings = { cleanup.policy = 'burn' }", 1, "creating topic declared-bad"),
        ("[topics.declared-bad]\nsettings = { retention.ms = 'x' }", 2, "'x' is not a duration"),
        ("[topics.declared-bad]\npartition = 1", 2, "unknown key 'partition'"),
        ("[topics.declared-bad", 2, "is not TOML: Expected ']' at the end of a table declaration (at end"),
        ("[topics.declared-shrinks]\npartitions = 1", 1, "partitions cannot be removed"),
    ],
)
def test_one_thing_that_is_wrong_keeps_the_whole_file_from_being_applied(
    kafka: LocalCluster, admin: Admin, tmp_path: Path, remove: list[str], text: str, code: int, message: str
) -> None:
    remove += ["declared-shrinks"]
    if "shrinks" in text:
        admin.create_topic("declared-shrinks", partitions=2, replicas=1)
    path = _file(admin, tmp_path, f"[topics.declared-good]\n{text}")
    result = _run(kafka, "apply", path, "--yes")
    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr
    assert result.stderr.startswith("error: ")
    assert "declared-good" not in admin.topic_names()


def test_a_topic_that_is_deleted_while_topics_are_read_is_left_out(
    kafka: LocalCluster, admin: Admin, tmp_path: Path, remove: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    remove += ["declared-stays", "declared-goes"]
    for name in remove:
        admin.create_topic(name, replicas=1)
    path = _file(admin, tmp_path, "[topics.declared-stays]\nreplicas = 1")
    listed = Admin.describe_topics

    def deleting(self: Admin, *arguments: Any, **options: Any) -> Any:
        topics = listed(self, *arguments, **options)
        if "declared-goes" in admin.topic_names():
            admin.delete_topics("declared-goes")
        return topics

    monkeypatch.setattr(Admin, "describe_topics", deleting)
    result = _run(kafka, "diff", path)
    assert result.exit_code == 0, result.stderr
    assert "declared-goes" not in result.stdout


def test_a_file_for_another_cluster_is_refused(kafka: LocalCluster, admin: Admin, tmp_path: Path) -> None:
    path = tmp_path / "topics.toml"
    path.write_text('cluster = "elsewhere"\n[topics.declared-other]\n')
    for command in (("diff",), ("apply", "--yes")):
        result = _run(kafka, command[0], path, *command[1:])
        assert result.exit_code == 2
        assert "the file is for cluster elsewhere, and this is cluster" in result.stderr
    assert "declared-other" not in admin.topic_names()


def test_a_change_of_replicas_is_left_to_the_command_for_it(
    kafka: LocalCluster, admin: Admin, tmp_path: Path, remove: list[str]
) -> None:
    remove += ["declared-replicas"]
    admin.create_topic("declared-replicas", replicas=1)
    path = _file(admin, tmp_path, "[topics.declared-replicas]\nreplicas = 3")
    result = _run(kafka, "apply", path, "--yes")
    assert result.exit_code == 0
    assert "'ottla topics replicas' changes it" in result.stdout
    after = _run(kafka, "diff", path)
    assert after.exit_code == 3, after.stderr
