"""Checks the security settings of a client, and warns if they send a secret without TLS."""

from __future__ import annotations

import logging

from ottla.config import Security, check_kind
from ottla.errors import Advice

_log = logging.getLogger(__name__)


def accepted(security: Security) -> Security:
    """Return the settings unchanged, after a warning in the log if they send a password or token without TLS.

    Loopback is no exception: the port may be a tunnel, and the same settings may be used elsewhere next. Raises
    `ConfigError` if `security` is not a `Security`.
    """
    check_kind("security", security, Security)
    if security.exposed:
        _log.warning("the %s is sent without TLS and can be read on the way: %s", security.exposed, Advice.PROTECT)
    return security
