"""`ottla work` on real brokers: handlers and what they take, failures, resets, topics, and what is refused."""

from __future__ import annotations

import gzip
import json
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.admin.members import fill
from tests.engines.fleet.servers import RedisServer
from tests.waiting import eventually

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.engines.fleet.store import open_store
from ottla.engines.fleet.units import Charter, Failure, Move
from ottla.model import OffsetRange, TopicPartition

from .commands import run
from .shops import Shop, offsets, shop

__all__ = ["shop"]

pytestmark = pytest.mark.broker

TOPIC, OTHER = "cli-work", "cli-work-2"
COUNTS = {0: 250, 1: 130}


@pytest.fixture(scope="module")
def admin(kafka: LocalCluster) -> Iterator[Admin]:
    with Admin(kafka.bootstrap) as opened:
        opened.create_topic(TOPIC, partitions=2, replicas=1, settings={"retention.ms": "-1"})
        opened.create_topic(OTHER, partitions=1, replicas=1)
        fill(kafka.bootstrap, TOPIC, COUNTS, first_ms=1_700_000_000_000)
        fill(kafka.bootstrap, OTHER, {0: 10})
        yield opened
        opened.delete_topics([TOPIC, OTHER])


class Group:
    """A group in a file, and the commands that have to do with it."""

    def __init__(self, bootstrap: str, store: str) -> None:
        self.name = f"cli-{uuid.uuid4().hex[:8]}"
        self.store = store
        self.bootstrap = bootstrap

    def at(self, *command: str) -> tuple[str, ...]:
        """A command with the options that say where the group is."""
        return ("work", *command, "--group", self.name, "--store", self.store)

    def say(self, *command: str, code: int = 0, connect: bool = True) -> str:
        """What a command prints; on stderr, if it fails."""
        where = ("--bootstrap", self.bootstrap) if connect else ()
        result = run(*self.at(*command), *where)
        assert result.exit_code == code, f"{result.stdout}\n{result.stderr}\n{result.exception!r}"
        return result.stderr if code else result.stdout

    def json(self, *command: str, code: int = 0, connect: bool = True) -> Any:
        where = ("--bootstrap", self.bootstrap) if connect else ()
        result = run(*self.at(*command), *where, "--json")
        assert result.exit_code == code, f"{result.stdout}\n{result.stderr}\n{result.exception!r}"
        return json.loads(result.stdout)

    def work(self, shop: Shop, handler: str, *more: str, code: int = 0, topic: str = TOPIC) -> Any:
        """Everything that is in the topic."""
        fixed = ("--topic", topic, "--from", "earliest", "--until", "latest", "--unit-records", "100")
        return self.json("run", "--handler", shop.handler(handler), *fixed, *more, code=code)


@pytest.fixture
def group(kafka: LocalCluster, admin: Admin, tmp_path: Path) -> Group:
    return Group(kafka.bootstrap, f"sqlite:///{tmp_path}/fleet.db")


@pytest.mark.parametrize(
    ("takes", "handler"), [("unit", "unit"), ("batches", "batches"), ("records", "records"), ("range", "ranges")]
)
def test_a_handler_is_given_everything_in_the_form_that_it_takes(
    group: Group, shop: Shop, takes: str, handler: str
) -> None:
    report = group.work(shop, handler, "--takes", takes, "--threads", "2")
    assert shop.seen() == offsets(COUNTS)
    assert (report["done"], report["failed"], report["given_up"]) == (5, 0, 0)
    assert report["records"] == (0 if takes == "range" else 380)
    assert group.json("status")["lag"] == 0


def test_a_group_goes_on_where_it_was(group: Group, shop: Shop) -> None:
    group.work(shop, "batches")
    shop.forget()
    assert group.work(shop, "batches")["done"] == 0
    assert shop.seen() == []


def test_positions_are_committed_to_a_consumer_group_in_kafka(group: Group, shop: Shop, admin: Admin) -> None:
    def told() -> dict[int, int]:
        group.work(shop, "ranges", "--takes", "range", "--commit-group", f"{group.name}-told")
        return {at.partition: one.offset for at, one in admin.groups.committed(f"{group.name}-told").items()}

    eventually(lambda: told() == COUNTS, "a planner publishes it each second at most")


def test_the_settings_of_a_group_are_the_default_of_its_nodes(group: Group, shop: Shop) -> None:
    group.work(shop, "batches", "--max-attempts", "2", "--ordered")
    group.work(shop, "batches")
    text = group.say("run", "--handler", shop.handler("batches"), "--max-attempts", "3", code=1)
    assert text.startswith(f"error: group {group.name} was begun with 2 attempts of a unit, not 3")
    assert "pass --yes" in group.say("reset", "--settings", "--max-attempts", "3", code=2)
    group.say("reset", "--settings", "--max-attempts", "3", "--unordered", "--yes")
    assert group.work(shop, "batches", "--max-attempts", "3")["done"] == 0, "positions were kept"
    with_store = open_store(group.store, group.name)
    assert with_store.found(Charter()) == Charter(max_attempts=3)
    with_store.close()


def test_a_group_whose_nodes_could_not_start_exists_for_every_command(group: Group, shop: Shop) -> None:
    with closing(open_store(group.store, group.name)) as store:
        assert not store.exists()
        store.found(Charter())
        assert store.exists()
    assert group.json("status")["group"] == group.name
    changed = group.json("reset", "--settings", "--ordered", "--yes")
    assert changed["settings"] == {"ordered": [False, True]}
    group.work(shop, "batches", "--ordered")


def test_a_unit_that_fails_comes_to_the_error_list_and_can_be_tried_again(group: Group, shop: Shop) -> None:
    report = group.work(shop, "fails_at_100", "--takes", "unit", "--max-attempts", "2", code=1)
    assert (report["failed"], report["given_up"]) == (4, 2)
    missing = {f"0:{offset}" for offset in range(100, 200)} | {f"1:{offset}" for offset in range(100, 130)}
    assert shop.seen() == sorted(set(offsets(COUNTS)) - missing)

    first, second = f"{TOPIC}/0/100-200", f"{TOPIC}/1/100-130"
    listed = group.json("errors", "list", connect=False)
    assert [(one["unit"], one["attempts"], one["reason"]) for one in listed] == [
        (first, 2, "ValueError: no"),
        (second, 2, "ValueError: no"),
    ]
    assert first in group.say("errors", "list", connect=False)
    shown = group.say("errors", "show", first, connect=False)
    assert "reason    ValueError: no" in shown
    assert "in fails_at_100" in shown
    standing = group.json("status")
    assert (standing["on_error_list"], standing["lag"]) == (2, 180)
    assert standing["counts"]["failed"] == 4

    assert group.say("errors", "retry", first, connect=False) == f"{first} waiting again\n"
    assert [one["unit"] for one in group.json("units", "--waiting", connect=False)] == [first]
    (shop.folder / "repaired").touch()
    assert group.work(shop, "fails_at_100", "--takes", "unit")["done"] == 1
    assert "pass --yes" in group.say("errors", "drop", "--all", code=2, connect=False)
    assert group.json("errors", "drop", "--all", "--dry-run", connect=False)["units"] == [second]
    assert group.json("errors", "drop", "--all", "--yes", connect=False)["units"] == [second]
    assert group.json("errors", "list", connect=False) == []
    assert group.json("status")["lag"] == 0
    assert "is not on the error list" in group.say("errors", "show", second, code=1, connect=False)


@pytest.mark.parametrize(
    ("to", "partition", "after"),
    [
        ("earliest", None, {0: 0, 1: 0}),
        ("120", None, {0: 120, 1: 120}),
        ("200", "0", {0: 200, 1: 130}),
        ("999", None, {0: 250, 1: 130}),
        ("2023-11-14T22:15:00Z", None, {0: 100, 1: 100}),
        ("latest", "1", {0: 250, 1: 130}),
    ],
)
def test_a_reset_does_what_its_dry_run_shows(
    group: Group, shop: Shop, to: str, partition: str | None, after: dict[int, int]
) -> None:
    group.work(shop, "ranges", "--takes", "range")
    shop.forget()
    command = ("reset", "--topic", TOPIC, "--to", to, *(("--partition", partition) if partition else ()))
    shown = group.json(*command, "--dry-run")
    assert shown["reset"] is False
    assert group.json("status")["lag"] == 0
    assert "pass --yes" in group.say(*command, code=2)
    assert group.json(*command, "--yes") == {**shown, "reset": True}
    assert {one["partition"]: one["before"] for one in shown["partitions"]}.items() <= COUNTS.items()
    assert group.json("status")["lag"] == 380 - sum(after.values())
    events = shop.folder / "events"
    group.work(shop, "ranges", "--takes", "range", "--events", str(events))
    assert shop.seen() == sorted(f"{at}:{one}" for at, first in after.items() for one in range(first, COUNTS[at]))
    told = [gzip.decompress(file.read_bytes()) for file in events.iterdir()]
    assert b"planner_changed" in told[0]
    assert not [one for one in told if b"store_went_back" in one]


def test_a_reset_takes_units_away_from_the_nodes_that_have_them(group: Group, shop: Shop) -> None:
    group.work(shop, "ranges", "--takes", "range")
    store = open_store(group.store, group.name)
    unit = OffsetRange(TOPIC, 0, 0, 100)
    group.say("reset", "--topic", TOPIC, "--to", "earliest", "--yes")
    lease = store.lead("me/planner-1")
    assert lease is not None
    assert store.plan(lease, [Move(unit.topic_partition, 0, 200, (unit, OffsetRange(TOPIC, 0, 100, 200)))])
    assert store.resign(lease)
    [grant] = store.take("me/1")
    text = group.say("reset", "--topic", TOPIC, "--to", "latest", "--yes")
    assert "drops units: 1 waiting, 1 in flight" in text
    assert not store.finish(grant.range, grant.lease, grant.range.stop)
    store.close()
    assert group.work(shop, "ranges", "--takes", "range")["done"] == 0


def test_a_recreated_topic_continues_after_a_reset(group: Group, shop: Shop, kafka: LocalCluster, admin: Admin) -> None:
    name = f"{TOPIC}-anew"
    admin.create_topic(name, partitions=1, replicas=1)
    fill(kafka.bootstrap, name, {0: 20})
    group.work(shop, "ranges", "--takes", "range", topic=name)
    admin.delete_topics(name)
    admin.create_topic(name, partitions=1, replicas=1)
    fill(kafka.bootstrap, name, {0: 20})
    assert "without --partition" in group.say("reset", "--topic", name, "--to", "5", "--partition", "0", code=1)
    group.say("reset", "--topic", name, "--to", "5", "--yes")
    shop.forget()
    group.work(shop, "ranges", "--takes", "range", topic=name)
    assert shop.seen() == sorted(f"0:{offset}" for offset in range(5, 20))
    admin.delete_topics(name)


def test_topics_come_and_go(group: Group, shop: Shop) -> None:
    group.work(shop, "ranges", "--takes", "range")
    shop.forget()
    assert group.say("topics", "add", OTHER) == f"group {group.name} works on {OTHER}\n"
    more = ("--takes", "range", "--from", "earliest", "--until", "latest")
    group.json("run", "--handler", shop.handler("ranges"), *more)
    assert shop.seen() == offsets({0: 10})
    group.say("topics", "remove", OTHER, connect=False)
    found = {one["name"]: one for one in group.json("topics", "list", connect=False)}
    assert (found[TOPIC]["planned"], found[OTHER]["planned"]) == (True, False)
    assert (found[TOPIC]["partitions"], found[OTHER]["partitions"]) == (2, 1)
    assert OTHER in group.say("topics", "list", connect=False)
    assert "does not work on" in group.say("topics", "remove", OTHER, code=1, connect=False)
    assert "UNKNOWN_TOPIC" in group.say("topics", "add", "cli-work-missing", code=1)


def test_status_and_units_tell_what_a_store_has(group: Group, kafka: LocalCluster) -> None:
    store = open_store(group.store, group.name)
    store.found(Charter(max_attempts=1))
    store.add_topics({TOPIC: ""})
    lease = store.lead("host-1-abc/planner-1")
    assert lease is not None
    units = [OffsetRange(TOPIC, 0, first, first + 50) for first in range(0, 200, 50)]
    assert store.plan(lease, [Move(TopicPartition(TOPIC, 0), None, 200, tuple(units))])
    _, second = store.take("host-1-abc/1", 2)
    store.fail(second.range, second.lease, Failure(second.range, 1, "boom", host="host"))
    report = {"planner": True, "holds": 1, "records": 5000, "started": 1.0, "units": {"done": 3}}
    store.hello("host-1-abc", {**report, "halted": {f"{TOPIC}/1": "its position lies elsewhere"}})

    found = group.json("status")
    assert (found["planner"], found["lag"], found["waiting"], found["in_flight"]) == ("host-1-abc", 250, 2, 1)
    assert (found["on_error_list"], found["counts"]["given_up"], found["rates"]) == (1, 1, None)
    assert found["halted"] == {f"{TOPIC}/1": "its position lies elsewhere"}
    [out] = found["out"]
    assert (out["unit"], out["holder"], out["attempt"]) == (f"{TOPIC}/0/0-50", "host-1-abc/1", 1)
    [state] = found["partitions"]
    assert (state["done"], state["planned"], state["end"], state["lag"]) == (0, 200, 250, 250)
    text = group.say("status")
    assert text.startswith(
        f"group {group.name} at {group.store}: lag 250, 2 units waiting, 1 in flight, 1 on the error list"
    )
    assert "planned by host-1-abc" in text
    assert f"not planned: {TOPIC}/1: its position lies elsewhere" in text

    assert [one["state"] for one in group.json("units", connect=False)] == ["out", "waiting", "waiting"]
    assert [one["unit"] for one in group.json("units", "--out", connect=False)] == [f"{TOPIC}/0/0-50"]
    assert len(group.json("units", "--waiting", "--limit", "1", connect=False)) == 1
    assert len(group.json("units", "--waiting", "--topic", TOPIC, connect=False)) == 2
    assert group.json("units", "--topic", OTHER, connect=False) == []
    assert f"{TOPIC}/0/100-150" in group.say("units", connect=False)
    assert "mutually exclusive" in group.say("units", "--out", "--waiting", code=2, connect=False)
    store.close()


def test_status_without_brokers_tells_what_the_store_knows(group: Group, shop: Shop) -> None:
    group.work(shop, "ranges", "--takes", "range")
    result = run(*group.at("status"), "--bootstrap", "127.0.0.1:1", "--timeout", "0.5", "--json")
    assert result.exit_code == 0
    assert "lag is unknown: " in result.stderr
    found = json.loads(result.stdout)
    assert (found["lag"], found["counts"]["done"]) == (None, 5)


def test_a_store_in_redis(kafka: LocalCluster, admin: Admin, shop: Shop, tmp_path: Path) -> None:
    with RedisServer(tmp_path / "redis") as server:
        group = Group(kafka.bootstrap, f"redis://127.0.0.1:{server.port}/1")
        assert group.work(shop, "fails_at_100", "--takes", "unit", "--max-attempts", "1", code=1)["done"] == 3
        assert len(group.json("errors", "list", connect=False)) == 2
        (shop.folder / "repaired").touch()
        group.say("errors", "retry", "--all", connect=False)
        assert group.work(shop, "fails_at_100", "--takes", "unit")["done"] == 2
        assert shop.seen() == offsets(COUNTS)
        group.say("reset", "--topic", TOPIC, "--to", "240", "--partition", "0", "--yes")
        assert group.json("status")["lag"] == 10


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        ("shop", "'shop' is not MODULE:FUNCTION, for example shop.clicks:handle"),
        (":f", "is not MODULE:FUNCTION"),
        ("no_such_module.sub:f", "no module no_such_module in "),
        ("SHOP:batchs", "has no batchs; did you mean batches?"),
        ("SHOP:NOT_CALLABLE", "is int, which cannot be called"),
        ("SHOP:no_argument", "no_argument() cannot be called with one argument"),
        ("SHOP:two_arguments", "two_arguments(a, b) cannot be called with one argument"),
        ("SHOP:coroutine", "is a coroutine function (async def): calling it would do nothing"),
        ("SHOP:generator", "is a generator function"),
        ("broken:f", "module broken cannot be imported: ZeroDivisionError: division by zero"),
        ("leaves:f", "module leaves cannot be imported: SystemExit: 3"),
        ("needs:f", "module needs cannot be imported: ModuleNotFoundError: No module named 'not_there_at_all'"),
    ],
)
def test_a_handler_that_cannot_be_used_is_refused_in_a_line(group: Group, shop: Shop, handler: str, text: str) -> None:
    (shop.folder / "broken.py").write_text("1 / 0")
    (shop.folder / "leaves.py").write_text("import sys; sys.exit(3)")
    (shop.folder / "needs.py").write_text("import not_there_at_all")
    told = group.say("run", "--handler", handler.replace("SHOP", shop.name), "--topic", TOPIC, code=2)
    assert text in told
    assert len(told.splitlines()) == 1


@pytest.mark.parametrize("function", ["any_arguments", "Till.ring"])
def test_handlers_may_be_anything_that_takes_one_argument(group: Group, shop: Shop, function: str) -> None:
    assert group.work(shop, function, "--takes", "range")["done"] == 5


@pytest.mark.usefixtures("hasty_about_unknown_topics")
@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        (("status",), 1, "no group "),
        (("units",), 1, "no group "),
        (("errors", "list"), 1, "no group "),
        (("errors", "retry", "--all"), 1, "no group "),
        (("errors", "retry"), 2, "name units, such as clicks/0/1000-2000, or pass --all"),
        (("errors", "show", "clicks-0"), 2, "'clicks-0' is not a unit: write TOPIC/PARTITION/START-STOP"),
        (("errors", "show", "clicks/0/9-8"), 2, "is not a unit"),
        (("reset", "--topic", TOPIC), 2, "--topic TOPIC and --to PLACE are required"),
        (("reset", "--topic", TOPIC, "--to", "yesterday"), 2, "'yesterday' is not a place in a topic"),
        (("reset", "--topic", TOPIC, "--to", "shift:5"), 2, "'shift:5' cannot be used here: use earliest, latest,"),
        (("reset", "--topic", TOPIC, "--to", "5"), 1, "no group "),
        (("reset", "--settings"), 2, "--settings needs --ordered"),
        (("reset", "--settings", "--ordered", "--to", "5"), 2, "--settings keeps all positions"),
        (("reset", "--ordered", "--topic", TOPIC, "--to", "5"), 2, "need --settings"),
        (("topics", "add", TOPIC), 1, "no group "),
        (("run", "--handler", "SHOP:batches"), 2, "has no topics yet: name one with --topic"),
        (("run", "--handler", "SHOP:batches", "--topic", "cli-work-missing"), 1, "UNKNOWN_TOPIC"),
        (("run", "--handler", "SHOP:batches", "--topic", "no topic"), 2, "no topic"),
        (
            ("run", "--handler", "SHOP:batches", "--topic", TOPIC, "--from", "soon"),
            2,
            "'soon' is not a place in a topic",
        ),
        (("run", "--handler", "SHOP:batches", "--topic", TOPIC, "--unit-size", "big"), 2, "'big' is not a size"),
        (("run", "--handler", "SHOP:batches", "--topic", TOPIC, "--lease", "0.1"), 2, "--lease"),
    ],
)
def test_what_is_wrong_is_said_once(group: Group, shop: Shop, command: tuple[str, ...], code: int, text: str) -> None:
    open_store(group.store, "another").found(Charter())
    connect = command[0] in ("status", "reset", "run") or command[:2] == ("topics", "add")
    told = group.say(*(one.replace("SHOP", shop.name) for one in command), code=code, connect=connect)
    assert text in " ".join(told.split())


@pytest.mark.parametrize(
    ("store", "code", "text"),
    [
        ("sqlite:///missing.db", 2, "no store at sqlite:///missing.db: no file "),
        ("mysql://host", 2, "store mysql://... is not supported"),
        ("redis://127.0.0.1:1", 1, "the fleet's store redis://127.0.0.1:1 does not answer"),
    ],
)
def test_a_store_that_is_not_there_is_reported(store: str, code: int, text: str, shop: Shop) -> None:
    result = run("work", "errors", "list", "--store", store)
    assert (result.exit_code, text in result.stderr) == (code, True), result.stderr
    assert not (shop.folder / "missing.db").exists()


def test_where_the_store_is_can_be_said_by_the_environment(group: Group, shop: Shop) -> None:
    group.work(shop, "ranges", "--takes", "range")
    env = {"OTTLA_STORE": group.store, "OTTLA_GROUP": group.name}
    result = run("work", "topics", "list", "--json", env=env)
    assert result.stderr == "using the store of OTTLA_STORE\n"
    assert [one["name"] for one in json.loads(result.stdout)] == [TOPIC]
    result = run("work", "topics", "list", env={"OTTLA_DIR": str(shop.folder)})
    assert result.exit_code == 2
    assert "no store: pass --store URL" in result.stderr
