"""A secure cluster: who gets in, and that no one else does, through any of its ports."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
from tests.cli.commands import run, write
from tests.net.endpoints import token_endpoint

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.cluster.certificates import Certificates
from ottla.cluster.security import Mechanism, Tokens, internal_security
from ottla.config import PLAINTEXT, Address, OAuthBearer, Plain, Scram, Security, Timeouts
from ottla.errors import AuthenticationFailed, LocalClusterError, NetworkError, NoBrokerReachable
from ottla.net import Connection, Deadline
from ottla.wire import messages

pytestmark = pytest.mark.broker

_DESCRIBE_CLUSTER = 60
SHORT = Timeouts(connect=5.0, request=5.0, total=10.0)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster("secure", secure=True, topics=["clicks"], dir=tmp_path_factory.mktemp("secure")) as cluster:
        yield cluster


def topics(bootstrap: str | None, security: Security) -> list[str]:
    assert bootstrap is not None
    with Admin(bootstrap, security=security, timeouts=SHORT) as admin:
        return list(admin.topic_names())


def ports(cluster: LocalCluster) -> list[int]:
    """Return the ports on which its brokers listen, from the process table."""
    (broker,) = cluster.status().brokers
    listening = psutil.Process(broker.pid).net_connections("tcp")
    return sorted({connection.laddr.port for connection in listening if connection.status == psutil.CONN_LISTEN})


def ask(port: int, security: Security) -> None:
    """Send a request that brokers and controllers answer after a login."""
    deadline = Deadline.after(10)
    with Connection.open(Address("127.0.0.1", port), security=security, client_id="t", deadline=deadline) as opened:
        question = messages.request_type(_DESCRIBE_CLUSTER, opened.version(_DESCRIBE_CLUSTER))
        fields = {"include_cluster_authorized_operations": False, "include_fenced_brokers": False, "endpoint_type": 1}
        opened.request(messages.compose(question, fields), deadline=deadline)


def unsigned(user: str) -> str:
    """Make a token that a broker without a validator would accept."""
    now = int(time.time())
    parts = ({"alg": "none"}, {"sub": user, "iat": now, "exp": now + 60})
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + "."


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER"])
def test_users_log_in(secure: LocalCluster, mechanism: Mechanism) -> None:
    assert topics(secure.secure_bootstrap, secure.security("bob", mechanism=mechanism)) == ["clicks"]


def test_a_client_certificate_lets_in(secure: LocalCluster) -> None:
    assert topics(secure.ssl_bootstrap, secure.mutual_tls()) == ["clicks"]


def test_no_port_lets_anybody_in_without_credentials(secure: LocalCluster) -> None:
    open_ports = ports(secure)
    assert len(open_ports) == 3, "SASL_SSL, SSL and that of the controllers"
    tls = secure.security("alice").tls
    for port in open_ports:
        for security in (PLAINTEXT, Security(tls=tls)):
            with pytest.raises(NetworkError):
                ask(port, security)
    internal = internal_security(secure._state(), secure._folder.certificates)
    (controller,) = [port for node in secure._state().nodes for port in [node.ports.controller]]
    assert controller in open_ports
    ask(controller, internal)  # so the missing login is what is refused there
    with pytest.raises(LocalClusterError, match="no plaintext listener: use secure_bootstrap with security"):
        _ = secure.bootstrap


def test_what_everybody_could_write_is_refused(secure: LocalCluster, tmp_path: Path) -> None:
    others = Certificates(tmp_path)
    others.create()
    tls = secure.security("alice").tls
    wrong = (
        OAuthBearer(lambda: unsigned("alice")),
        OAuthBearer(Tokens("alice", others)),
        Plain("alice", "alice-secret"),
        Scram("ottla", ""),
    )
    for sasl in wrong:
        with pytest.raises((AuthenticationFailed, NoBrokerReachable)):
            topics(secure.secure_bootstrap, Security(tls=tls, sasl=sasl))


def test_commands_log_in_with_tokens(secure: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    status = secure.status()
    where = ("--bootstrap", str(secure.secure_bootstrap), "--ca-file", str(status.ca_file))
    token = Tokens("alice", Certificates(Path(status.directory) / "certificates"))()
    file = write(tmp_path / "token", token.encode() + b"\n")
    shown = run("topics", "list", *where, "--oauth-token-file", file)
    assert (shown.exit_code, shown.stdout) == (0, "clicks\n"), shown.stderr
    with token_endpoint() as endpoint:
        endpoint.answer = {"access_token": token, "expires_in": 60}
        client = ("--oauth-token-url", endpoint.url, "--oauth-client-id", "me", "--oauth-scope", "kafka")
        monkeypatch.setenv("OTTLA_OAUTH_CLIENT_SECRET", "s3cret")
        shown = run("topics", "list", *where, "--sasl-mechanism", "oauthbearer", *client)
        assert (shown.exit_code, shown.stdout) == (0, "clicks\n"), shown.stderr
        endpoint.status, endpoint.answer = 401, {"error": "invalid_client"}
        refused = run("topics", "list", *where, *client[:-1], "other")
        assert refused.exit_code == 1
        assert "answered 401: invalid_client" in refused.stderr
        assert "s3cret" not in refused.output


def test_a_command_without_an_address_says_what_to_give(secure: LocalCluster) -> None:
    status = secure.status()
    ended = run("topics", "list", env={"OTTLA_DIR": str(Path(status.directory).parent), "OTTLA_BOOTSTRAP": ""})
    assert ended.exit_code == 2
    options = f"--bootstrap {status.secure_bootstrap} --ca-file {status.ca_file} --username alice"
    assert options in " ".join(ended.stderr.split())


def test_one_more_broker_joins(secure: LocalCluster) -> None:
    added = secure.add()
    assert [broker.roles for broker in secure.status().brokers] == ["broker+controller", "broker"]
    with Admin(str(secure.secure_bootstrap), security=secure.security(), timeouts=SHORT) as admin:
        assert added in admin.cluster.metadata().brokers
        admin.create_topic("copied", replicas=2)
        assert len(admin.describe_topics("copied")[0].partitions[0].isr) == 2
