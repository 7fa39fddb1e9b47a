"""Makes the properties file of one node from the state of its cluster. Pure: values in, text out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ottla.cluster.certificates import Certificates
from ottla.cluster.ports import HOST
from ottla.cluster.security import INTERNAL_USER, ISSUER
from ottla.cluster.state import ClusterState, NodeState

_MAX_REPLICAS = 3
_INTERNAL_PARTITIONS = 9
_SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_MODULES = "org.apache.kafka.common.security"
MECHANISMS = (*_SCRAM, "PLAIN", "OAUTHBEARER")


def node_properties(state: ClusterState, node: NodeState, *, data: Path, certificates: Certificates) -> dict[str, str]:
    """Return the properties of one node; the cluster's own `settings` come last and take precedence."""
    return {
        **_roles(state, node),
        **_listeners(node, is_open=state.open),
        **(_security(state, certificates) if state.secure else {}),
        **({} if state.open else _internal(state.internal_password)),
        **_replication(min(_MAX_REPLICAS, len(state.nodes))),
        **_development(),
        **({"broker.rack": rack} if (rack := state.rack(node)) is not None else {}),
        "log.dirs": str(data),
        **state.settings,
    }


def render(properties: Mapping[str, str]) -> str:
    """Return the text of a Java properties file, which is ASCII with escapes."""
    return "".join(f"{_escaped(key, ' =:#!')}={_escaped(value, '')}\n" for key, value in properties.items())


def scram_credentials(users: Mapping[str, str]) -> list[str]:
    """Return the users in the form that Kafka's storage tool takes."""
    return [f"{kind}=[name={user},password={password}]" for user, password in users.items() for kind in _SCRAM]


def _roles(state: ClusterState, node: NodeState) -> dict[str, str]:
    voters = [f"{n.id}@{HOST}:{n.ports.controller}" for n in state.nodes if n.controller]
    return {
        "node.id": str(node.id),
        "process.roles": "broker,controller" if node.controller else "broker",
        "controller.quorum.voters": ",".join(voters),
        "controller.listener.names": "CONTROLLER",
    }


def _listeners(node: NodeState, *, is_open: bool) -> dict[str, str]:
    ports = node.ports
    ports_by_name = {"PLAINTEXT": ports.plaintext, "SASL_SSL": ports.sasl_ssl, "SSL": ports.ssl}
    clients = [f"{name}://{HOST}:{port}" for name, port in ports_by_name.items() if port is not None]
    controller = [f"CONTROLLER://{HOST}:{ports.controller}"] if node.controller else []
    inner_listener = "PLAINTEXT" if is_open else "SASL_SSL"
    return {
        "listeners": ",".join([*clients, *controller]),
        "advertised.listeners": ",".join(clients),
        "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,SSL:SSL,CONTROLLER:{inner_listener}",
        "inter.broker.listener.name": inner_listener,
    }


def _security(state: ClusterState, certificates: Certificates) -> dict[str, str]:
    prefix = "listener.name.sasl_ssl"
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.broker),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.authority),
        "listener.name.ssl.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        f"{prefix}.scram-sha-256.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;",
        f"{prefix}.scram-sha-512.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;",
        f"{prefix}.plain.sasl.jaas.config": _plain(state.internal_password, state.users),
        f"{prefix}.oauthbearer.sasl.jaas.config": (
            f'{_MODULES}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
        ),
        # Without this, Kafka accepts unsigned tokens, which anyone can write.
        f"{prefix}.oauthbearer.sasl.server.callback.handler.class": (
            f"{_MODULES}.oauthbearer.OAuthBearerValidatorCallbackHandler"
        ),
        "sasl.oauthbearer.jwks.endpoint.url": certificates.token_keys.absolute().as_uri(),
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": ISSUER,
    }


def allowed_keys(certificates: Certificates) -> list[str]:
    """Return the Java options that allow Kafka to read token keys from a file."""
    key_file = certificates.token_keys.absolute()
    prefix = "-Dorg.apache.kafka.sasl.oauthbearer"
    return [f"{prefix}.allowed.urls={key_file.as_uri()}", f"{prefix}.allowed.files={key_file}"]


def _internal(password: str) -> dict[str, str]:
    """Return how nodes log in to each other if no listener is open."""
    return {
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.controller.plain.sasl.jaas.config": _plain(password, {}),
    }


def _plain(password: str, users: Mapping[str, str]) -> str:
    """Return a login module: the internal user logs in to other nodes with it, and this node knows all users by it."""
    passwords = "".join(f' user_{user}="{secret}"' for user, secret in {INTERNAL_USER: password, **users}.items())
    return f'{_MODULES}.plain.PlainLoginModule required username="{INTERNAL_USER}" password="{password}"{passwords};'


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
        # A killed broker is gone after 4 s instead of 9. Shorter timeouts misfire on a busy machine.
        "broker.session.timeout.ms": "4000",
        "broker.heartbeat.interval.ms": "500",
        # An idle cluster writes an empty record to its metadata every ten seconds, not twice a second.
        "metadata.max.idle.interval.ms": "10000",
        # The log cleaner allocates this on the heap when it starts; the default is 128 MB.
        "log.cleaner.dedupe.buffer.size": str(16 << 20),
    }


def _escaped(text: str, special: str) -> str:
    stripped = text.lstrip(" ")  # Java drops leading blanks of a value unless they are escaped.
    return "\\ " * (len(text) - len(stripped)) + "".join(_escape(char, special) for char in stripped)


def _escape(char: str, special: str) -> str:
    if char == "\\" or char in special:
        return f"\\{char}"
    if " " <= char <= "~":
        return char
    encoded = char.encode("utf-16-be")
    return "".join(f"\\u{encoded[i]:02x}{encoded[i + 1]:02x}" for i in range(0, len(encoded), 2))
