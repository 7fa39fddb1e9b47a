"""Where a client connects that is given no address: OTTLA_BOOTSTRAP, else the local cluster that is running.

The environment and the address files of local clusters come in; bootstrap addresses go out. A local cluster leaves an
address file while it runs with a listener that needs no credentials. This module never connects, and apart from the
commands it is the only one that reads the environment.
"""

from __future__ import annotations

import os
from pathlib import Path

from ottla.errors import Advice, ConfigError
from ottla.small_files import small_text

VARIABLE = "OTTLA_BOOTSTRAP"
DIR_VARIABLE = "OTTLA_DIR"
ADDRESS_FILE = "bootstrap"
"""In the folder of a local cluster: `host:port,...` of its brokers."""
_DEFAULT_NAME = "default"


def clusters_folder() -> Path:
    """Return the default folder of local clusters."""
    import platformdirs  # Most clients are given an address.

    return Path(platformdirs.user_state_dir("ottla")).resolve() / "clusters"


def default_bootstrap() -> str:
    """Return the addresses for a client that is given none.

    With several local clusters, it is the one named `default`. Raises `ConfigError` if there is no address, or more
    than one.
    """
    if named := os.environ.get(VARIABLE):
        return named
    addresses = _local_addresses(Path(os.environ.get(DIR_VARIABLE) or clusters_folder()))
    if _DEFAULT_NAME in addresses:
        return addresses[_DEFAULT_NAME]
    if len(addresses) > 1:
        raise ConfigError(
            f"no bootstrap address given, and several local clusters are running ({', '.join(sorted(addresses))}), none"
            f" of them named {_DEFAULT_NAME!r}: {Advice.ADDRESS}"
        )
    if not addresses:
        raise ConfigError(
            f"no bootstrap address given, {VARIABLE} is not set and no local cluster is running: {Advice.ADDRESS}"
        )
    return next(iter(addresses.values()))


def _local_addresses(folder: Path) -> dict[str, str]:
    addresses = {}
    for file in folder.glob(f"*/{ADDRESS_FILE}"):
        try:
            addresses[file.parent.name] = small_text(file).strip()
        except FileNotFoundError:  # Its cluster has just been taken down.
            continue
        except OSError as error:
            raise ConfigError(f"the address file {file} cannot be read: {error.strerror}") from error
    return {name: address for name, address in addresses.items() if address}
