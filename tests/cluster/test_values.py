"""The pure parts: topic specifications, properties files, client security, Java's version, names."""

from __future__ import annotations

import base64
import json
import os
import pickle
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ottla.cluster.certificates import Certificates
from ottla.cluster.creation import ClusterRequest
from ottla.cluster.java import find_java
from ottla.cluster.lifecycle import fresh_nodes
from ottla.cluster.ports import free_ports, is_free
from ottla.cluster.properties import node_properties, render, scram_credentials
from ottla.cluster.security import Tokens, client_security
from ottla.cluster.state import ClusterFolder, ClusterState
from ottla.cluster.topics import TopicSpec
from ottla.config import OAuthBearer, Plain, Scram
from ottla.errors import ConfigError, LocalClusterError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("clicks", TopicSpec("clicks")),
        ("clicks:6", TopicSpec("clicks", 6)),
        ("clicks:6:3", TopicSpec("clicks", 6, 3)),
        ("clicks:6:3:compact", TopicSpec("clicks", 6, 3, "compact")),
        ("clicks::3", TopicSpec("clicks", 1, 3)),
        ("clicks:::compact,delete", TopicSpec("clicks", 1, None, "compact,delete")),
        ("clicks:::delete,compact", TopicSpec("clicks", 1, None, "compact,delete")),
    ],
)
def test_a_topic_is_written_in_one_word(text: str, expected: TopicSpec) -> None:
    assert TopicSpec.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "topic name ''"),
        ("a b", "topic name 'a b'"),
        ("..", "topic name '..'"),
        ("x" * 250, "topic name"),
        ("a:0", "partitions '0'"),
        ("a:-1", "partitions '-1'"),
        ("a:x", "partitions 'x'"),
        ("a:1:0", "replicas '0'"),
        ("a:1:1:never", "policy 'never' is not one of delete | compact | compact,delete"),
        ("a:1:1:compact:x", "is not NAME"),
    ],
)
def test_a_wrong_topic_says_what_is_wrong(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TopicSpec.parse(text)
    assert reason in str(caught.value)


def _state(brokers: int, *, secure: bool = False, settings: dict[str, str] | None = None) -> ClusterState:
    request = ClusterRequest(brokers=brokers, secure=secure, settings=settings or {}, cache_dir=Path("cache"))
    return request.new_state("c", random.Random(1))


def _properties(state: ClusterState, node_id: int) -> dict[str, str]:
    return node_properties(
        state, state.node(node_id), data=Path("data"), certificates=Certificates(Path("certificates"))
    )


@pytest.mark.parametrize(("brokers", "controllers"), [(1, 1), (2, 2), (3, 3), (5, 3)])
def test_the_first_three_nodes_are_controllers(brokers: int, controllers: int) -> None:
    state = _state(brokers)
    roles = [_properties(state, number)["process.roles"] for number in range(1, brokers + 1)]
    assert roles == ["broker,controller"] * controllers + ["broker"] * (brokers - controllers)
    voters = {_properties(state, number)["controller.quorum.voters"] for number in range(1, brokers + 1)}
    assert len(voters) == 1
    assert len(voters.pop().split(",")) == controllers


@pytest.mark.parametrize(
    ("brokers", "replicas", "in_sync"), [(1, "1", "1"), (2, "2", "1"), (3, "3", "2"), (6, "3", "2")]
)
def test_replication_follows_the_number_of_brokers(brokers: int, replicas: str, in_sync: str) -> None:
    properties = _properties(_state(brokers), 1)
    assert properties["offsets.topic.replication.factor"] == replicas
    assert properties["default.replication.factor"] == replicas
    assert properties["transaction.state.log.min.isr"] == in_sync


def test_a_plain_cluster_has_no_secure_listener_and_a_secure_one_has_two() -> None:
    state = _state(1, secure=True)
    plain, secure = _properties(_state(1), 1), _properties(state, 1)
    assert [part.split(":")[0] for part in plain["advertised.listeners"].split(",")] == ["PLAINTEXT"]
    assert [part.split(":")[0] for part in secure["advertised.listeners"].split(",")] == ["SASL_SSL", "SSL"]
    assert "CONTROLLER:SASL_SSL" in secure["listener.security.protocol.map"]
    assert secure["inter.broker.listener.name"] == "SASL_SSL"
    assert not [key for key in plain if "ssl.keystore" in key or "jaas" in key]
    password = state.users["alice"]
    assert f'user_alice="{password}"' in secure["listener.name.sasl_ssl.plain.sasl.jaas.config"]
    assert password != _state(1, secure=True).users["alice"], "every cluster has passwords of its own"


def test_all_listeners_are_on_the_loopback_address() -> None:
    for listener in _properties(_state(3, secure=True), 2)["listeners"].split(","):
        assert listener.split("://")[1].startswith("127.0.0.1:")


def test_settings_of_the_user_win() -> None:
    properties = _properties(_state(1, settings={"auto.create.topics.enable": "true", "x.y": "z"}), 1)
    assert properties["auto.create.topics.enable"] == "true"
    assert properties["x.y"] == "z"


def test_properties_are_escaped_as_java_reads_them() -> None:
    assert render({"a b": " c\\d\n"}) == "a\\ b=\\ c\\\\d\\u000a\n"
    assert render({"path": "/data/käse/😀"}) == "path=/data/k\\u00e4se/\\ud83d\\ude00\n"


def test_scram_users_are_given_both_mechanisms() -> None:
    assert scram_credentials({"u": "p"}) == [
        "SCRAM-SHA-256=[name=u,password=p]",
        "SCRAM-SHA-512=[name=u,password=p]",
    ]


def test_client_security_follows_the_mechanism(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    certificates.create()
    users = {"alice": "secret"}
    scram = client_security("alice", "SCRAM-SHA-256", users=users, certificates=certificates)
    assert scram.sasl == Scram("alice", "secret", "SCRAM-SHA-256")
    assert scram.tls is not None
    assert scram.tls.ca_file == tmp_path / "ca.pem"
    plain = client_security("alice", "PLAIN", users=users, certificates=certificates)
    assert plain.sasl == Plain("alice", "secret")
    token = client_security("alice", "OAUTHBEARER", users=users, certificates=certificates)
    assert isinstance(token.sasl, OAuthBearer)
    assert token.sasl.token().count(".") == 2
    assert pickle.loads(pickle.dumps(token)) == token
    with pytest.raises(ConfigError, match="no user 'eve': its users are alice"):
        client_security("eve", "PLAIN", users=users, certificates=certificates)


def test_a_token_says_who_and_until_when_and_is_signed(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    certificates.create()
    head, claims, signature = Tokens("alice", certificates).signed(now=1000.5, lifetime=60.0).split(".")
    payload = json.loads(base64.urlsafe_b64decode(claims + "=="))
    assert {name: payload[name] for name in ("sub", "iat", "exp")} == {"sub": "alice", "iat": 1000, "exp": 1060}
    assert json.loads(base64.urlsafe_b64decode(head + "==")) == {"alg": "ES256", "kid": "ottla"}
    assert len(base64.urlsafe_b64decode(signature + "==")) == 64


def test_certificates_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "c")
    certificates.create()
    for secret in (certificates.broker, certificates.client_key):
        assert secret.stat().st_mode & 0o077 == 0
        assert b"BEGIN PRIVATE KEY" in secret.read_bytes()
    assert b"PRIVATE" not in certificates.authority.read_bytes() + certificates.client.read_bytes()


def test_ports_are_distinct_free_and_outside_the_range_of_outgoing_connections() -> None:
    ports = free_ports(40, random.Random(7))
    assert len(set(ports)) == 40
    assert all(is_free(port) and port < 32_768 for port in ports)


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".", "-x", "x" * 65, "a b"])
def test_a_cluster_name_cannot_leave_its_folder(name: str) -> None:
    with pytest.raises(ConfigError, match="cluster name"):
        ClusterFolder(Path("base"), name)


def _java(folder: Path, version: str) -> Path:
    executable = folder / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    executable.chmod(0o755)
    return executable


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    home, path = _java(tmp_path / "home", "21.0.1"), _java(tmp_path / "path", "17.0.15")
    assert find_java({"JAVA_HOME": str(home.parent.parent), "PATH": str(path.parent)}) == home
    assert find_java({"PATH": str(path.parent)}) == path


def test_a_java_home_that_is_too_old_gives_way_to_the_path(tmp_path: Path) -> None:
    home, path = _java(tmp_path / "home", "1.8.0_292"), _java(tmp_path / "path", "17")
    assert find_java({"JAVA_HOME": str(home.parent.parent), "PATH": str(path.parent)}) == path


def test_a_java_that_is_found_twice_is_named_once(tmp_path: Path) -> None:
    old = _java(tmp_path / "old", "11.0.2")
    with pytest.raises(LocalClusterError) as caught:
        find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": str(old.parent)})
    assert str(caught.value).count("is Java 11") == 1


def test_no_two_nodes_of_a_cluster_are_given_the_same_port() -> None:
    """With a generator that repeats itself, as one in a hundred starts of many brokers would."""

    class Forgetful(random.Random):
        def choice(self, seq: Any) -> Any:
            return super().choice(seq[:300])

    nodes = fresh_nodes(50, is_open=True, secure=True, first_port=None, rng=Forgetful(1))
    ports = [port for node in nodes for port in node.ports.taken()]
    assert len(ports) == len(set(ports))


@pytest.mark.parametrize(("is_open", "secure"), [(True, False), (True, True), (False, True)])
def test_chosen_ports_are_those_that_clients_use(is_open: bool, secure: bool) -> None:
    nodes = fresh_nodes(3, is_open=is_open, secure=secure, first_port=20_100, rng=random.Random(1))
    assert [node.address.port for node in nodes] == [20_100, 20_101, 20_102]
    ports = [port for node in nodes for port in node.ports.taken()]
    assert len(ports) == len(set(ports)) == 3 * (1 + is_open + 2 * secure)


def test_a_missing_or_old_java_is_one_sentence_that_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(LocalClusterError, match="apt install openjdk-17-jre-headless"):
        find_java({"PATH": str(tmp_path)})
    old = _java(tmp_path / "old", "11.0.2")
    with pytest.raises(LocalClusterError, match=f"{old} is Java 11"):
        find_java({"PATH": str(old.parent)})
    with pytest.raises(LocalClusterError, match="not a working Java"):
        find_java({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": os.devnull})


def test_a_cluster_that_differs_from_what_is_wanted_is_refused_with_the_difference() -> None:
    state = _state(3)
    ClusterRequest(cache_dir=Path("elsewhere")).require(state)
    ClusterRequest(brokers=3, cache_dir=Path()).require(state)
    with pytest.raises(LocalClusterError, match="brokers: 3, not 2"):
        ClusterRequest(brokers=2, cache_dir=Path()).require(state)
    with pytest.raises(LocalClusterError, match="secure: False, not True"):
        ClusterRequest(secure=True, cache_dir=Path()).require(replace(state, name="x"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"brokers": 0},
        {"brokers": 51},
        {"heap_bytes": 1},
        {"version": "1.0"},
        {"port": 0},
        {"port": 65_534, "brokers": 3},
    ],
)
def test_impossible_wishes_are_refused_before_anything_happens(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        ClusterRequest(cache_dir=Path(), **wrong)  # type: ignore[arg-type]
