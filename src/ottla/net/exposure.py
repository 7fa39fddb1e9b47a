"""Security settings on their way into a client: the right kind, and a warning where secrets would be readable."""

from __future__ import annotations

import logging

from ottla.config import Security, check_kind
from ottla.errors import Advice

_log = logging.getLogger(__name__)


def accepted(security: Security) -> Security:
    """The same; once for each client it is said that a password or token goes out without TLS, to whatever address.

    Loopback is no exception: the port may be a tunnel, and the same settings are used elsewhere next.
    """
    check_kind("security", security, Security)
    if security.exposed:
        _log.warning("the %s goes out without TLS, readable for all on the way: %s", security.exposed, Advice.PROTECT)
    return security
