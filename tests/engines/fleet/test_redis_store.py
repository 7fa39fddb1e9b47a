"""A group in Redis when servers refuse, restart, fail over, move, or answer slowly or not at all."""

from __future__ import annotations

import os
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.waiting import eventually

from ottla.cluster.ports import HOST
from ottla.engines.fleet import redis_link, redis_scripts
from ottla.engines.fleet.redis_scripts import KEYS
from ottla.engines.fleet.store import Store, open_store
from ottla.engines.fleet.units import Charter, Failure, Lease, Move, Seen
from ottla.errors import ConfigError, OttlaError, StoreIncompatible, StoreUnavailable
from ottla.model import OffsetRange, TopicPartition

from .servers import Gate, RedisServer, ask
from .test_stores import planned, work

OpenAt = Callable[..., Store]


@pytest.fixture
def open_at(group: str) -> Iterator[OpenAt]:
    """Open stores at addresses; all are closed at the end."""
    opened: list[Store] = []

    def open_it(url: str) -> Store:
        opened.append(open_store(url, group))
        return opened[-1]

    yield open_it
    for store in opened:
        store.close()


def address(port: int, rest: str = "") -> str:
    return f"redis://{HOST}:{port}{rest}"


def use(*stores: Store) -> None:
    for store in stores:
        store.found(Charter())
        store.hello("n", {})


def works(store: Store) -> bool:
    try:
        use(store)
    except StoreUnavailable:
        return False
    return True


# Servers that end and come back


def test_a_server_with_an_appendonly_file_forgets_nothing_when_it_is_killed(tmp_path: Path, open_at: OpenAt) -> None:
    with RedisServer(tmp_path, "--appendonly", "yes") as server:
        store = open_at(address(server.port))
        planned(store, 20, partitions=3)
        grants = store.take("a", 5)
        store.finish(grants[0].range, grants[0].lease, 3)
        before, waiting = store.look(), store.waiting()
        server.kill()
        with pytest.raises(StoreUnavailable, match="Connection refused"):
            store.look()
        server.start()
        assert store.look() == before
        assert store.waiting() == waiting
        assert store.finish(grants[1].range, grants[1].lease, 10)


def test_a_server_that_comes_back_empty_has_no_group_until_it_is_founded_again(tmp_path: Path, open_at: OpenAt) -> None:
    with RedisServer(tmp_path) as server:
        store = open_at(address(server.port))
        planned(store, 3)
        grant = store.take("a")[0]
        server.kill()
        server.start()
        assert not store.finish(grant.range, grant.lease, 10)
        with pytest.raises(StoreUnavailable, match="has no group"):
            store.lead("b")
        assert store.found(Charter(ordered=True)) == Charter(ordered=True)
        assert store.lead("b") == Lease(1, "b")


def test_numbers_leap_when_a_server_was_started_again_since_it_may_have_forgotten_some(
    tmp_path: Path, open_at: OpenAt
) -> None:
    with RedisServer(tmp_path) as server:
        store = open_at(address(server.port))
        planned(store, 6)
        store.take("a")
        server.ask("SAVE")
        forgotten = store.take("b", 3)
        server.kill()
        server.start()
        again = store.take("c")[0]
        assert again.range == forgotten[0].range
        assert again.lease.number > max(grant.lease.number for grant in forgotten)
        following = store.take("c")[0]
        assert following.lease.number == again.lease.number + 1
        assert store.lead("d", None) is None
        assert not store.finish(forgotten[0].range, forgotten[0].lease, forgotten[0].range.stop)


def test_a_server_that_may_not_tell_who_it_is_works_too(tmp_path: Path, open_at: OpenAt) -> None:
    with RedisServer(tmp_path) as server:
        server.ask("ACL", "SETUSER", "narrow", "on", ">pw", "~*", "+@all", "-info")
        store = open_at(f"redis://narrow:pw@127.0.0.1:{server.port}")
        units = planned(store, 2)
        assert [grant.range for grant in store.take("a", 2)] == units


def test_a_server_that_has_never_seen_the_scripts_gets_them(redis_server: RedisServer, open_at: OpenAt) -> None:
    store = open_at(address(redis_server.port))
    units = planned(store, 2)
    redis_server.ask("SCRIPT", "FLUSH")
    assert [grant.range for grant in store.take("a", 2)] == units


def test_a_connection_that_ended_while_it_was_idle_goes_unnoticed(redis_server: RedisServer, open_at: OpenAt) -> None:
    store = open_at(address(redis_server.port))
    planned(store, 2)
    redis_server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert len(store.take("a")) == 1


def test_when_sentinels_make_another_server_the_master_the_store_follows(
    watched_redis: tuple[str, list[RedisServer]], open_at: OpenAt
) -> None:
    url, (master, replica) = watched_redis
    store = open_at(url)
    units = planned(store, 10, partitions=2)
    done: list[OffsetRange] = []
    grant = store.take("a")[0]
    assert master.ask("WAIT", 1, 5000) == 1
    master.kill()
    with pytest.raises(StoreUnavailable):
        store.take("a")
    eventually(lambda: works(store), "the replica is the master", seconds=60)
    assert replica.ask("ROLE")[0] == b"master"
    assert store.finish(grant.range, grant.lease, grant.range.stop)
    work(store, "a", done)
    assert sorted([grant.range, *done]) == sorted(units)


def test_sentinels_that_know_no_such_master_say_so(
    watched_redis: tuple[str, list[RedisServer]], open_at: OpenAt
) -> None:
    url, _ = watched_redis
    with pytest.raises(StoreUnavailable, match=r"no sentinel names the master: .* knows no master 'other'"):
        open_at(url.replace("/one", "/other")).look()


# A cluster


def test_all_keys_of_a_group_are_on_one_node(
    cluster_of_redis: tuple[str, list[RedisServer]], open_at: OpenAt, group: str
) -> None:
    url, nodes = cluster_of_redis
    store = open_at(url)
    planned(store, 3, charter=Charter(max_attempts=1))
    store.take("a")
    store.note("k", b"v")
    store.hello("n", {})
    store.add_topics({"clicks": ""})
    keys_by_node = [[key for key in node.ask("KEYS", "*") if f"{{{group}}}".encode() in key] for node in nodes]
    assert sorted(map(bool, keys_by_node)) == [False, False, True]
    store.forget()


def test_any_node_of_a_cluster_leads_to_the_right_one(
    cluster_of_redis: tuple[str, list[RedisServer]], open_at: OpenAt
) -> None:
    _, nodes = cluster_of_redis
    stores = [open_at(f"redis+cluster://{HOST}:1,{HOST}:{node.port}") for node in nodes]
    planned(stores[0], 3)
    assert [len(store.take("a")) for store in stores] == [1, 1, 1]
    stores[0].forget()


def test_a_group_that_moves_to_another_node_is_away_for_a_while_and_then_there_as_it_was(
    cluster_of_redis: tuple[str, list[RedisServer]], open_at: OpenAt, group: str
) -> None:
    url, nodes = cluster_of_redis
    store = open_at(url)
    planned(store, 10, partitions=2)
    store.take("a", 3)
    before = store.look()
    keys = [f"ottla:{{{group}}}:{name}" for name in KEYS]
    slot = nodes[0].ask("CLUSTER", "KEYSLOT", keys[0])
    source = next(node for node in nodes if node.ask("CLUSTER", "COUNTKEYSINSLOT", slot))
    target = next(node for node in nodes if node is not source)
    names = {node.port: node.ask("CLUSTER", "MYID") for node in nodes}
    target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", names[source.port])
    source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", names[target.port])
    source.ask("MIGRATE", HOST, target.port, "", 0, 5000, "KEYS", *keys[:6])
    with pytest.raises(StoreUnavailable, match="the cluster is moving the group to another node"):
        store.take("b")
    source.ask("MIGRATE", HOST, target.port, "", 0, 5000, "KEYS", *keys[6:])
    for node in (target, source, *nodes):
        node.ask("CLUSTER", "SETSLOT", slot, "NODE", names[target.port])
    assert store.look() == before
    assert len(store.take("b")) == 1
    assert target.ask("CLUSTER", "COUNTKEYSINSLOT", slot) > 0
    store.forget()


def test_a_cluster_that_lacks_a_node_is_down_until_the_node_is_back(
    cluster_of_redis: tuple[str, list[RedisServer]], open_at: OpenAt, group: str
) -> None:
    url, nodes = cluster_of_redis
    store = open_at(url)
    use(store)
    owner = next(node for node in nodes if any(group.encode() in key for key in node.ask("KEYS", "*")))
    owner.kill()
    with pytest.raises(StoreUnavailable, match="Connection refused"):
        store.look()
    owner.start()
    eventually(lambda: works(store), "the cluster is whole")
    store.forget()


# Servers that refuse, each for a reason of its own


def refused(store: Store, kind: type[OttlaError], says: str) -> None:
    with pytest.raises(kind) as caught:
        use(store)
    assert re.search(says, str(caught.value)), str(caught.value)
    assert store.address in str(caught.value)


def test_no_server_listens(open_at: OpenAt) -> None:
    refused(open_at(address(1)), StoreUnavailable, "does not answer: .*Connection refused")


def test_a_host_that_does_not_exist(open_at: OpenAt) -> None:
    refused(open_at("redis://nowhere.invalid"), StoreUnavailable, "does not answer: .*nowhere.invalid:6379")


def test_no_sentinel_listens(open_at: OpenAt) -> None:
    url = f"redis+sentinel://{HOST}:1,{HOST}:2/one"
    refused(open_at(url), StoreUnavailable, "no sentinel names the master: .*:1: .*refused.*; .*:2: .*refused")


def test_a_database_that_the_server_does_not_have(redis_server: RedisServer, open_at: OpenAt) -> None:
    refused(open_at(address(redis_server.port, "/99")), ConfigError, "it has no database with that number")


def test_a_node_of_a_cluster_under_the_address_of_a_single_server(
    cluster_of_redis: tuple[str, list[RedisServer]], open_at: OpenAt
) -> None:
    stores = [open_at(address(node.port)) for node in cluster_of_redis[1]]
    with pytest.raises(ConfigError, match=r"it is a node of a cluster: use the address redis\+cluster://"):
        use(*stores)


def test_a_server_that_is_no_redis(open_at: OpenAt) -> None:
    with socket.create_server((HOST, 0)) as listener:

        def answer() -> None:
            client, _ = listener.accept()
            with client:
                client.recv(1000)
                client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        refused(open_at(address(listener.getsockname()[1])), StoreIncompatible, "is not a Redis: .*HTTP/1.1 400")
        thread.join()


def test_keys_that_hold_something_else(redis_server: RedisServer, open_at: OpenAt, group: str) -> None:
    redis_server.ask("SET", f"ottla:{{{group}}}:meta", "x")
    refused(open_at(address(redis_server.port)), StoreIncompatible, "keys of the group hold something else")


def test_a_charter_that_is_none(redis_server: RedisServer, open_at: OpenAt, group: str) -> None:
    redis_server.ask("HSET", f"ottla:{{{group}}}:meta", "charter", "[]")
    refused(open_at(address(redis_server.port)), StoreIncompatible, r"is damaged: its charter is b'\[\]'")


def test_a_group_of_another_version(redis_server: RedisServer, open_at: OpenAt, group: str) -> None:
    redis_server.ask("HSET", f"ottla:{{{group}}}:meta", "charter", '{"version": 2}')
    refused(open_at(address(redis_server.port)), StoreIncompatible, "has version 2, and this Ottla supports version 1")


def test_units_that_are_none(redis_server: RedisServer, open_at: OpenAt, group: str) -> None:
    store = open_at(address(redis_server.port))
    store.found(Charter())
    redis_server.ask("HSET", f"ottla:{{{group}}}:out", "nonsense", "1 2 3 a")
    with pytest.raises(StoreIncompatible, match="is damaged"):
        store.pulse()
    store.forget()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """For tests that put it into some state, and back."""
    with RedisServer(tmp_path_factory.mktemp("moody"), "--lua-time-limit", "100") as server:
        yield server


def test_a_replica(server: RedisServer, open_at: OpenAt, redis_server: RedisServer) -> None:
    server.ask("REPLICAOF", HOST, redis_server.port)
    refused(open_at(address(server.port)), StoreUnavailable, "it is a read-only replica")
    server.ask("REPLICAOF", "NO", "ONE")


def test_a_password_that_is_wrong_or_missing(server: RedisServer, open_at: OpenAt) -> None:
    server.ask("CONFIG", "SET", "requirepass", "hunter2")
    for userinfo in ("", ":wrong@", "nobody:hunter2@"):
        store = open_at(f"redis://{userinfo}{HOST}:{server.port}")
        refused(store, ConfigError, "it rejects the user and password in its address, or requires them")
    assert works(open_at(f"redis://:hunter2@{HOST}:{server.port}"))
    ask(server.port, "CONFIG", "SET", "requirepass", "", password="hunter2")


def test_a_password_file_is_read_for_every_connection(server: RedisServer, open_at: OpenAt, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("hunter2\n")
    server.ask("CONFIG", "SET", "requirepass", "hunter2")
    store = open_at(address(server.port, f"?password_file={file}"))
    use(store)
    ask(server.port, "CONFIG", "SET", "requirepass", "hunter3", password="hunter2")
    ask(server.port, "CLIENT", "KILL", "TYPE", "normal", password="hunter3")
    refused(store, ConfigError, "it rejects the user and password in its address, or requires them")
    file.write_text("hunter3\n")
    use(store)
    store.close()
    file.unlink()
    refused(store, ConfigError, "its password_file .* cannot be read: No such file")
    ask(server.port, "CONFIG", "SET", "requirepass", "", password="hunter3")


def test_a_password_for_a_server_that_has_none(server: RedisServer, open_at: OpenAt) -> None:
    store = open_at(f"redis://:hunter2@{HOST}:{server.port}")
    refused(store, ConfigError, "it rejects the user and password")


def test_a_user_without_rights(server: RedisServer, open_at: OpenAt) -> None:
    server.ask("ACL", "SETUSER", "guest", "on", ">secret", "~other:*", "+@all")
    store = open_at(f"redis://guest:secret@{HOST}:{server.port}")
    refused(store, ConfigError, r"its user lacks the right to run scripts or to use the keys ottla:\*")


def test_a_server_whose_memory_is_full(server: RedisServer, open_at: OpenAt) -> None:
    server.ask("CONFIG", "SET", "maxmemory", "1")
    refused(open_at(address(server.port)), StoreUnavailable, "its memory is full")
    server.ask("CONFIG", "SET", "maxmemory", "0")


def test_a_server_whose_memory_is_full_lets_the_work_go_on(server: RedisServer, open_at: OpenAt) -> None:
    """Found: what waited could not be taken, so that a memory that was full of it stayed full."""
    store = open_at(address(server.port))
    planned(store, 6)
    kept, failed, lost = store.take("a", 3)
    failure = Failure(failed.range, failed.attempt, "reason", "", "host", 0.0)
    server.ask("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(StoreUnavailable, match="its memory is full"):
            store.hello("a", {})
        taken = store.take("b", 3)
        assert len(taken) == 3
        assert store.renew([(kept.range, kept.lease)]) == [True]
        assert store.fail(failed.range, failed.lease, failure)
        assert store.reclaim(lost.range, Seen(lost.lease, 0), failure)
        assert not store.finish(lost.range, lost.lease, lost.range.stop)
        assert all(store.finish(grant.range, grant.lease, grant.range.stop) for grant in (kept, *taken))
        assert store.waiting() == [failed.range, lost.range]
    finally:
        server.ask("CONFIG", "SET", "maxmemory", "0")


def test_a_server_that_throws_data_away(server: RedisServer, open_at: OpenAt) -> None:
    server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    refused(open_at(address(server.port)), StoreIncompatible, "maxmemory-policy is allkeys-lru.*: set it to noeviction")
    server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")


def test_a_server_that_cannot_save(open_at: OpenAt, tmp_path: Path) -> None:
    with RedisServer(tmp_path / "gone") as server:
        server.ask("CONFIG", "SET", "save", "3600 1")
        server.ask("SET", "x", "y")
        shutil.rmtree(server.folder)
        server.ask("BGSAVE")
        eventually(lambda: b"rdb_last_bgsave_status:err" in server.ask("INFO", "persistence"), "saving has failed")
        refused(open_at(address(server.port)), StoreUnavailable, "it cannot save its data to disk")


def test_a_server_that_lacks_replicas(server: RedisServer, open_at: OpenAt) -> None:
    server.ask("CONFIG", "SET", "min-replicas-to-write", "1")
    refused(open_at(address(server.port)), StoreUnavailable, "it has too few replicas")
    server.ask("CONFIG", "SET", "min-replicas-to-write", "0")


def test_a_server_that_is_busy_with_a_script(server: RedisServer, open_at: OpenAt) -> None:
    def loop() -> None:
        with pytest.raises(Exception, match="killed"):
            server.ask("EVAL", "while true do end", 0)

    thread = threading.Thread(target=loop)
    thread.start()
    eventually(lambda: not works(open_at(address(server.port))), "it is busy")
    refused(open_at(address(server.port)), StoreUnavailable, "it is busy running a script")
    server.ask("SCRIPT", "KILL")
    thread.join()
    assert works(open_at(address(server.port)))


def test_a_server_that_is_still_reading_its_data(server: RedisServer, open_at: OpenAt) -> None:
    for i in range(40):  # it looks up from its file every two megabytes
        server.ask("SET", f"key-{i}", os.urandom(1_000_000))
    server.ask("SAVE")
    server.kill()
    server.options += ["--key-load-delay", "50000"]
    server.start()
    refused(open_at(address(server.port)), StoreUnavailable, "it is loading its data from disk")


# TLS


def test_a_certificate_that_is_not_trusted(tls_gate: Gate, open_at: OpenAt) -> None:
    store = open_at(f"rediss://localhost:{tls_gate.port}")
    refused(store, ConfigError, "the server's certificate is not trusted: .*name its CA with .ca=FILE")


def test_a_certificate_of_another_host(tls_gate: Gate, open_at: OpenAt, ca_file: Path) -> None:
    store = open_at(f"rediss://127.0.0.1:{tls_gate.port}?ca={ca_file}")
    refused(store, ConfigError, "certificate is not trusted: .*127.0.0.1")
    assert works(open_at(f"rediss://127.0.0.1:{tls_gate.port}?ca={ca_file}&check_hostname=no"))


def test_tls_against_a_server_that_has_none(
    redis_server: RedisServer, open_at: OpenAt, ca_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_link, "ANSWER_SECONDS", 0.2)
    store = open_at(f"rediss://localhost:{redis_server.port}?ca={ca_file}")
    with pytest.raises((ConfigError, StoreUnavailable)):
        store.look()


def test_no_tls_against_a_server_that_has_it(tls_gate: Gate, open_at: OpenAt) -> None:
    with pytest.raises((StoreIncompatible, StoreUnavailable)):
        open_at(address(tls_gate.port)).look()


def test_a_file_with_a_certificate_that_does_not_exist() -> None:
    with pytest.raises(ConfigError, match=r"has ca=/nowhere\.pem, but there is no such file"):
        open_store("rediss://localhost?ca=/nowhere.pem", "g")


# Answers that are late, or lost


def test_a_step_whose_answer_was_lost_is_not_repeated(redis_server: RedisServer, open_at: OpenAt) -> None:
    with Gate(redis_server.port) as gate:
        store = open_at(address(gate.port))
        planned(store, 5)
        assert store.take("a", 0) == []  # the server knows the script from now on
        gate.loses_answers = True
        with pytest.raises(StoreUnavailable, match="Connection closed by server"):
            store.take("a")
        gate.loses_answers = False
        assert [out.seen.lease for out in store.pulse().out] == [Lease(2, "a")]
        store.forget()


def test_a_server_that_says_nothing_is_given_up(
    redis_server: RedisServer, open_at: OpenAt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_link, "ANSWER_SECONDS", 0.2)
    with Gate(redis_server.port) as gate:
        store = open_at(address(gate.port))
        store.found(Charter())
        redis_server.ask("CLIENT", "PAUSE", 1000)
        with pytest.raises(StoreUnavailable, match="Timeout reading"):
            store.look()
        eventually(lambda: works(store), "it answers again")
        store.forget()


def test_an_answer_that_drips_is_given_up_in_time(
    redis_server: RedisServer, open_at: OpenAt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_link, "CALL_SECONDS", 0.5)
    with Gate(redis_server.port) as gate:
        store = open_at(address(gate.port))
        planned(store, 50)
        gate.pause = 0.05
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match="Timeout reading"):
            store.waiting()
        assert time.monotonic() - began < 20, "the whole answer would take more than a minute"
        gate.pause = 0.0
        assert works(store)
        store.forget()


# What steps need


def test_no_script_looks_at_a_clock_or_lets_anything_expire() -> None:
    texts = [script.text for script in vars(redis_scripts).values() if isinstance(script, redis_scripts.Script)]
    assert len(texts) > 20
    used = {name for text in texts for name in re.findall(r"call\('(\w+)'", text)}
    assert used == {
        *("HDEL", "HEXISTS", "HGET", "HGETALL", "HINCRBY", "HKEYS", "HMGET", "HSET", "HSETNX"),
        *("ZADD", "ZLEXCOUNT", "ZRANGE", "ZRANGEBYLEX", "ZREM", "ZREMRANGEBYLEX"),
        "INFO",
    }
    assert {field for text in texts for field in re.findall(r"string.match\(info, '(\w+):", text)} == {"run_id"}
    assert not any("os." in text for text in texts)


def commands(server: RedisServer) -> int:
    lines = server.ask("INFO", "commandstats").decode().splitlines()
    return sum(int(match[1]) for line in lines if (match := re.search(r"calls=(\d+)", line)))


def test_steps_cost_the_same_however_many_units_and_partitions_there_are(
    redis_server: RedisServer, open_at: OpenAt
) -> None:
    store = open_at(address(redis_server.port))
    store.found(Charter())
    lease = store.lead("planner")
    assert lease is not None

    def cost() -> list[int]:
        costs = []
        counted = commands(redis_server)
        (grant,) = store.take("a")
        for step in (
            lambda: None,
            lambda: store.renew([(grant.range, grant.lease)]),
            store.pulse,
            lambda: store.finish(grant.range, grant.lease, grant.range.stop),
        ):
            step()
            now = commands(redis_server)
            costs.append(now - counted)
            counted = now
        return costs

    def grow(partitions: int, units: int) -> None:
        moves = []
        for partition in range(partitions):
            some = tuple(OffsetRange("clicks", partition, start, start + 1) for start in range(units))
            moves.append(Move(TopicPartition("clicks", partition), None, units, some))
        assert store.plan(lease, moves)

    grow(1, 10)
    cost()
    few = cost()
    store.reset(TopicPartition("clicks", 0), None)
    grow(1000, 40)
    cost()
    assert cost() == few
    store.forget()
