"""The properties file of one node, from the state of its cluster. Pure: values in, text out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ottla.cluster.certificates import Certificates
from ottla.cluster.ports import HOST
from ottla.cluster.state import ClusterState, NodeState

_MAX_REPLICAS = 3
_INTERNAL_PARTITIONS = 9
_PROTOCOLS = "PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,SSL:SSL,CONTROLLER:PLAINTEXT"
_SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = (*_SCRAM, "PLAIN", "OAUTHBEARER")


def node_properties(state: ClusterState, node: NodeState, *, data: Path, certificates: Certificates) -> dict[str, str]:
    """What one node runs with; the cluster's own `settings` come last and win."""
    return {
        **_roles(state, node),
        **_listeners(node),
        **(_security(state.users, certificates) if state.secure else {}),
        **_replication(min(_MAX_REPLICAS, len(state.nodes))),
        **_development(),
        "log.dirs": str(data),
        **state.settings,
    }


def render(properties: Mapping[str, str]) -> str:
    """As the text of a Java properties file, which is ASCII with escapes."""
    return "".join(f"{_escaped(key, ' =:#!')}={_escaped(value, '')}\n" for key, value in properties.items())


def scram_credentials(users: Mapping[str, str]) -> list[str]:
    """The users as Kafka's storage tool takes them."""
    return [f"{kind}=[name={user},password={password}]" for user, password in users.items() for kind in _SCRAM]


def _roles(state: ClusterState, node: NodeState) -> dict[str, str]:
    voters = [f"{n.id}@{HOST}:{n.ports.controller}" for n in state.nodes if n.controller]
    return {
        "node.id": str(node.id),
        "process.roles": "broker,controller" if node.controller else "broker",
        "controller.quorum.voters": ",".join(voters),
        "controller.listener.names": "CONTROLLER",
    }


def _listeners(node: NodeState) -> dict[str, str]:
    ports = node.ports
    named = {"PLAINTEXT": ports.plaintext, "SASL_SSL": ports.sasl_ssl, "SSL": ports.ssl}
    clients = [f"{name}://{HOST}:{port}" for name, port in named.items() if port is not None]
    controller = [f"CONTROLLER://{HOST}:{ports.controller}"] if node.controller else []
    return {
        "listeners": ",".join([*clients, *controller]),
        "advertised.listeners": ",".join(clients),
        "listener.security.protocol.map": _PROTOCOLS,
        "inter.broker.listener.name": "PLAINTEXT",
    }


def _security(users: Mapping[str, str], certificates: Certificates) -> dict[str, str]:
    modules = "org.apache.kafka.common.security"
    known = "".join(f' user_{user}="{password}"' for user, password in users.items())
    prefix = "listener.name.sasl_ssl"
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.broker),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.authority),
        "ssl.client.auth": "requested",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        f"{prefix}.scram-sha-256.sasl.jaas.config": f"{modules}.scram.ScramLoginModule required;",
        f"{prefix}.scram-sha-512.sasl.jaas.config": f"{modules}.scram.ScramLoginModule required;",
        f"{prefix}.plain.sasl.jaas.config": f"{modules}.plain.PlainLoginModule required{known};",
        # Without a validator of its own Kafka accepts unsigned tokens: right for tests and for nothing else.
        f"{prefix}.oauthbearer.sasl.jaas.config": (
            f'{modules}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
        ),
    }


def _replication(replicas: int) -> dict[str, str]:
    in_sync = str(max(1, replicas - 1))
    return {
        "default.replication.factor": str(replicas),
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": str(replicas),
        "offsets.topic.num.partitions": str(_INTERNAL_PARTITIONS),
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": in_sync,
        "transaction.state.log.num.partitions": str(_INTERNAL_PARTITIONS),
        "share.coordinator.state.topic.replication.factor": str(replicas),
        "share.coordinator.state.topic.min.isr": in_sync,
        "share.coordinator.state.topic.num.partitions": str(_INTERNAL_PARTITIONS),
    }


def _development() -> dict[str, str]:
    return {
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        # A killed broker counts as gone after 4 s instead of 9; shorter ones misfire on a busy machine.
        "broker.session.timeout.ms": "4000",
        "broker.heartbeat.interval.ms": "500",
        # The cleaner takes this from the heap when it starts, 128 MB if not told otherwise.
        "log.cleaner.dedupe.buffer.size": str(16 << 20),
    }


def _escaped(text: str, special: str) -> str:
    kept = text.lstrip(" ")  # Java drops blanks at the start of a value unless they are escaped
    return "\\ " * (len(text) - len(kept)) + "".join(_escape(char, special) for char in kept)


def _escape(char: str, special: str) -> str:
    if char == "\\" or char in special:
        return f"\\{char}"
    if " " <= char <= "~":
        return char
    encoded = char.encode("utf-16-be")
    return "".join(f"\\u{encoded[i]:02x}{encoded[i + 1]:02x}" for i in range(0, len(encoded), 2))
