"""`ottla groups` on three real brokers: lag, members, resets and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import Result
from tests.admin.members import fill, member

from ottla.admin import Admin, Committed
from ottla.cluster import LocalCluster
from ottla.model import TopicPartition

from .commands import run

pytestmark = pytest.mark.broker

TOPIC = "cli-groups"
T0, T1, T2 = (TopicPartition(TOPIC, number) for number in range(3))
GROUP = "cli-group"


@pytest.fixture(scope="module")
def admin(kafka: LocalCluster) -> Iterator[Admin]:
    with Admin(kafka.bootstrap) as opened:
        opened.create_topic(TOPIC, partitions=3, replicas=3, settings={"retention.ms": "-1"})
        fill(kafka.bootstrap, TOPIC, {0: 10, 1: 20}, first_ms=1_700_000_000_000)
        yield opened
        opened.delete_topics(TOPIC)


@pytest.fixture
def group(admin: Admin) -> Iterator[str]:
    admin.groups.set_offsets(GROUP, {T0: 4, T1: 15})
    yield GROUP
    admin.groups.delete(GROUP)


def _run(kafka: LocalCluster, *arguments: str) -> Result:
    return run("groups", *arguments, "--bootstrap", kafka.bootstrap)


def _json(kafka: LocalCluster, *arguments: str) -> Any:
    result = _run(kafka, *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def _offsets(admin: Admin, name: str = GROUP) -> dict[int, int]:
    return {at.partition: found.offset for at, found in admin.groups.committed(name).items()}


def test_groups_are_listed(kafka: LocalCluster, group: str) -> None:
    [line] = [one for one in _run(kafka, "list").stdout.splitlines() if one.startswith(f"{group} ")]
    assert line.split()[1:3] == ["Empty", "classic"]
    [found] = [one for one in _json(kafka, "list") if one["name"] == group]
    assert (found["state"], found["type"]) == ("Empty", "classic")


def test_describe_shows_lag_and_marks_partitions_without_commit(kafka: LocalCluster, group: str) -> None:
    lines = _run(kafka, "describe", group).stdout.splitlines()
    assert lines[0] == f"{group}: Empty, classic protocol, 0 members, lag 11, 1 partition without commit"
    assert [line.split()[1:] for line in lines[2:]] == [
        ["0", "4", "0", "10", "6"],
        ["1", "15", "0", "20", "5"],
        ["2", "-", "0", "0", "-", "no", "commit"],
    ]
    [found] = _json(kafka, "describe", group)
    assert found["lag"] == 11
    assert [one["lag"] for one in found["partitions"]] == [6, 5, None]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_in_use_is_described_with_its_members_and_left_alone(
    kafka: LocalCluster, admin: Admin, protocol: str
) -> None:
    name = f"cli-used-{protocol}"
    with member(kafka.bootstrap, name, TOPIC, protocol=protocol, client="app-1"):
        lines = _run(kafka, "describe", name).stdout.splitlines()
        assert lines[0].startswith(f"{name}: Stable, {protocol} protocol, assignor ")
        assert lines[2].split()[:4] == ["app-1", "127.0.0.1", "3", f"{TOPIC}:0-2"]
        [found] = _json(kafka, "describe", name)
        assert found["members"][0]["assigned"] == {TOPIC: [0, 1, 2]}
        assert {one["client_id"] for one in found["partitions"]} == {"app-1"}
        goal = ("--to", "earliest", "--topic", TOPIC)
        for refused in (("reset", name, *goal), ("reset", name, *goal, "--dry-run"), ("delete", name, "--yes")):
            result = _run(kafka, *refused)
            assert result.exit_code == 1
            assert f"group {name} is in use" in result.stderr
            assert "1 member: app-1 on 127.0.0.1" in result.stderr
        assert admin.groups.committed(name) == {}
    assert _run(kafka, "reset", name, *goal, "--yes").exit_code == 0
    assert _run(kafka, "delete", name, "--yes").stdout == f"deleted {name}\n"


@pytest.mark.parametrize(
    ("arguments", "after"),
    [
        (
            (
                "--to",
                "earliest",
            ),
            {0: 0, 1: 0},
        ),
        (
            (
                "--to",
                "latest",
            ),
            {0: 10, 1: 20},
        ),
        (("--to", "latest", "--topic", TOPIC), {0: 10, 1: 20, 2: 0}),
        (("--to", "latest", "--topic", f"{TOPIC}:1-2"), {0: 4, 1: 20, 2: 0}),
        (("--to", "7"), {0: 7, 1: 7}),
        (("--to", "12"), {0: 10, 1: 12}),
        (("--to", "shift:-2"), {0: 2, 1: 13}),
        (("--to", "shift:5"), {0: 9, 1: 20}),
        (("--to", "shift:-100"), {0: 0, 1: 0}),
        (("--to", "2023-11-14T22:13:25Z"), {0: 5, 1: 5}),
        (("--to", "2023-11-14T22:13:32Z"), {0: 10, 1: 12}),
        (("--to", "-2h"), {0: 10, 1: 20}),
    ],
)
def test_a_reset_does_what_its_dry_run_shows(
    kafka: LocalCluster, admin: Admin, group: str, arguments: tuple[str, ...], after: dict[int, int]
) -> None:
    shown = _json(kafka, "reset", group, *arguments, "--dry-run")
    assert shown["reset"] is False
    assert _offsets(admin) == {0: 4, 1: 15}
    done = _json(kafka, "reset", group, *arguments, "--yes")
    assert done == {**shown, "reset": True}
    assert _offsets(admin) == after
    assert {one["partition"]: one["before"] for one in done["partitions"]}.items() <= {0: 4, 1: 15, 2: None}.items()


def test_offsets_beyond_the_log_are_cut_and_it_is_said(kafka: LocalCluster, group: str) -> None:
    result = _run(kafka, "reset", group, "--to", "shift:-100", "--dry-run")
    assert "group cli-group would be reset:" in result.stdout
    assert "not -96: the log starts at 0" in result.stdout
    assert "not 2000: the log ends at 20" in _run(kafka, "reset", group, "--to", "2000", "--yes").stdout


def test_a_new_group_can_be_placed_before_its_first_use(kafka: LocalCluster, admin: Admin, group: str) -> None:
    assert _run(kafka, "reset", "cli-new", "--to-group", group, "--new").exit_code == 0
    assert admin.groups.committed("cli-new") == {T0: Committed(4), T1: Committed(15)}
    admin.groups.delete("cli-new")


def test_groups_in_which_ottla_keeps_positions_are_listed_on_request(kafka: LocalCluster, admin: Admin) -> None:
    names = ["cli-mine", "ottla-fleet.cli-own", "ottla-replay-cli-own:0"]
    for name in names:
        admin.groups.set_offsets(name, {T0: 1})
    listed = _run(kafka, "list", "--json")
    assert {"cli-mine"} == {group["name"] for group in json.loads(listed.stdout)} & set(names)
    assert re.fullmatch(r"[0-9]+ internal groups not listed: --internal shows all\n", listed.stderr)
    everything = _run(kafka, "list", "--json", "--internal")
    assert set(names) <= {group["name"] for group in json.loads(everything.stdout)}
    assert "internal" not in everything.stderr


def test_groups_are_deleted(kafka: LocalCluster, admin: Admin) -> None:
    for name in ("cli-gone-1", "cli-gone-2"):
        admin.groups.set_offsets(name, {T0: 1})
    for refused in (("delete", "cli-gone-1", "cli-gone-2"), ("reset", "cli-gone-1", "--to", "latest")):
        result = _run(kafka, *refused)
        assert result.exit_code == 2
        assert "pass --yes to confirm, or --dry-run to look first" in result.stderr
    shown = _run(kafka, "delete", "cli-gone-1", "cli-gone-2", "--dry-run")
    told = "(offsets of 1 partition)"
    assert shown.stdout == f"would delete cli-gone-1 {told}, cli-gone-2 {told}\n"
    assert {"cli-gone-1", "cli-gone-2"} <= {group.name for group in admin.groups.list_groups()}
    result = _run(kafka, "delete", "cli-gone-1", "--yes")
    assert result.stdout == "deleted cli-gone-1\n"
    result = _run(kafka, "delete", "cli-gone-2", "--yes", "--json")
    assert json.loads(result.stdout) == {"deleted": True, "groups": [{"name": "cli-gone-2", "partitions": 1}]}
    assert not [one for one in admin.groups.list_groups() if one.name.startswith("cli-gone")]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("describe", "cli-missing"), 1, "describing group cli-missing: GROUP_ID_NOT_FOUND"),
        (("delete", "cli-missing", "--yes"), 1, "GROUP_ID_NOT_FOUND"),
        (("reset", "cli-missing", "--to", "latest"), 1, "GROUP_ID_NOT_FOUND"),
        (
            ("reset", "cli-missing", "--to", "latest", "--new"),
            2,
            "no committed offsets: name topics with --topic",
        ),
        (("reset", GROUP), 2, "--to PLACE is missing"),
        (("reset", GROUP, "--to-latest", "--to-earliest"), 2, "give it only once"),
        (("reset", GROUP, "--to", "yesterday"), 2, "'yesterday' is not a place in a topic: use"),
        (("reset", GROUP, "--to", ""), 2, "is not a place in a topic"),
        (("reset", GROUP, "--to", "2023-11-14"), 2, "has no zone: write 2023-11-14T00:00:00Z"),
        (("reset", GROUP, "--to", "shift:x"), 2, "is not a shift"),
        (
            ("reset", GROUP, "--to", "latest", "--topic", "cli-missing"),
            1,
            "describing topic cli-missing: UNKNOWN_TOPIC",
        ),
        (("reset", GROUP, "--to", "latest", "--topic", f"{TOPIC}:9"), 1, "has no partition 9: it has 0 to 2"),
        (("reset", GROUP, "--to", "latest", "--topic", f"{TOPIC}:x"), 2, "'x' are not partitions"),
        (("reset", GROUP, "--to", "shift:1", "--topic", TOPIC), 1, f"{TOPIC}-2 has no committed offset to shift"),
        (("reset", GROUP, "--to", "group:cli-missing"), 2, "group cli-missing does not exist"),
    ],
)
def test_what_is_wrong_is_said_once_and_moves_nothing(
    kafka: LocalCluster, admin: Admin, group: str, arguments: tuple[str, ...], code: int, text: str
) -> None:
    result = _run(kafka, *arguments)
    assert result.exit_code == code
    assert text in " ".join(result.stderr.split())
    assert result.stdout == ""
    assert _offsets(admin, group) == {0: 4, 1: 15}
