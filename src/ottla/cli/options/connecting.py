"""The options of every command that looks after a cluster; the command gets one open `admin: Admin`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.cli.options.bootstrap import bootstrap_option
from ottla.cli.options.general import timeout_option
from ottla.cli.options.security import security_options

if TYPE_CHECKING:
    from ottla.config import Retry, Security


def soon() -> Retry:
    """Where nothing listens, or nothing that speaks as it was told to, a command says so after a few tries."""
    from ottla.config import Retry

    return Retry(first_contact=4)


def meet(bootstrap: str, security: Security, *, timeout: float) -> None:
    """Connects once, so that a wrong address is said soon by a command that is patient with brokers later."""
    from ottla.config import Timeouts
    from ottla.net import Cluster

    with Cluster(bootstrap, security=security, timeouts=Timeouts(total=timeout), retry=soon()) as cluster:
        cluster.metadata([])


_Command = TypeVar("_Command", bound=Callable[..., Any])


def with_admin(command: _Command) -> _Command:
    """Give a command the options of a connection, and the argument `admin: Admin`, open while it runs."""
    from ottla.config import Timeouts

    @functools.wraps(command)
    def connected(*args: Any, bootstrap: str, security: Security, timeout: float, **given: Any) -> Any:
        from ottla.admin import Admin

        with Admin(bootstrap, security=security, timeouts=Timeouts(total=timeout), retry=soon()) as admin:
            return command(*args, admin=admin, **given)

    wrapped: Any = bootstrap_option(security_options(timeout_option(connected)))
    found: _Command = wrapped
    return found
