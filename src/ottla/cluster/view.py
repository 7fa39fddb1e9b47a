"""What clients and tests need to know about a local cluster: its state, addresses, credentials, logs and data.

The folder comes in; every call reads the state file. Nothing here changes anything.
"""

from __future__ import annotations

from pathlib import Path

from ottla.cluster.redis import password, password_file
from ottla.cluster.security import Mechanism, client_security, mutual_tls
from ottla.cluster.state import ClusterFolder, ClusterState, Phase
from ottla.cluster.status import ClusterStatus, read_status
from ottla.config import Security
from ottla.errors import Advice, LocalClusterError


class ClusterView:
    """A named cluster, read from its state file. Members raise `LocalClusterError` if it is not running."""

    def __init__(self, folder: ClusterFolder) -> None:
        self._folder = folder

    @property
    def name(self) -> str:
        """The name of the cluster in its folder."""
        return self._folder.name

    def status(self) -> ClusterStatus:
        """Return the current status; never raises for a cluster that is absent, stale or damaged."""
        return read_status(self._folder)

    def logs(self, broker: int) -> Path:
        """Return the log file with everything a broker printed."""
        return self._folder.log(self._state().node(broker).id)

    def data(self, broker: int) -> Path:
        """Return the folder with a broker's partitions, for tools that read log segments."""
        return self._folder.data(self._state().node(broker).id)

    @property
    def bootstrap(self) -> str:
        """`host:port,...` of every broker's plaintext listener, including brokers that are down."""
        addresses = self._state().addresses("plaintext")
        if addresses is None:
            raise LocalClusterError(
                f"cluster {self.name!r} has no plaintext listener: use secure_bootstrap with security(), or start it"
                " with plaintext=True"
            )
        return addresses

    @property
    def secure_bootstrap(self) -> str | None:
        """`host:port,...` of the SASL_SSL listeners, or None without `secure`."""
        return self._state().addresses("sasl_ssl")

    @property
    def ssl_bootstrap(self) -> str | None:
        """`host:port,...` of the TLS listeners without SASL, which require a client certificate; None without
        `secure`."""
        return self._state().addresses("ssl")

    def security(self, user: str = "alice", *, mechanism: Mechanism = "SCRAM-SHA-512") -> Security:
        """Return the settings of a client for `secure_bootstrap`. Raises `ConfigError` for an unknown user."""
        state = self._secure_state()
        return client_security(user, mechanism, users=state.users, certificates=self._folder.certificates)

    def mutual_tls(self) -> Security:
        """Return the settings of a client for `ssl_bootstrap`: the authority and a client certificate."""
        self._secure_state()
        return mutual_tls(self._folder.certificates)

    @property
    def redis_url(self) -> str | None:
        """The address of the Redis as a store of a fleet, or None without `redis`.

        It names a file with the password; other clients need `redis_password`.
        """
        state = self._state()
        return state.redis.url(password_file(self._folder.redis)) if state.redis is not None else None

    @property
    def redis_password(self) -> str | None:
        """The password of the Redis, or None without `redis`."""
        return password(self._folder.redis) if self._state().redis is not None else None

    def _secure_state(self) -> ClusterState:
        state = self._state()
        if not state.secure:
            raise LocalClusterError(f"cluster {self.name!r} has no secure listeners: start it with secure=True")
        return state

    def _state(self) -> ClusterState:
        state = self._folder.load()
        if state is None or state.phase is Phase.KEPT:
            problem = "is stopped" if state is not None else "does not exist"
            raise LocalClusterError(f"cluster {self.name!r} {problem}: {Advice.CLUSTER_START}")
        return state
