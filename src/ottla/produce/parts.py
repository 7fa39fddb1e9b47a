"""What a sender is put together from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ottla.config import Retry
from ottla.events import Events
from ottla.net import Cluster
from ottla.net.bell import Bell
from ottla.produce.budget import Budget
from ottla.produce.intake import Intake
from ottla.produce.keeper import Keeper
from ottla.produce.options import Settings
from ottla.produce.outcomes import Outcomes
from ottla.produce.route import Router


@dataclass(frozen=True, slots=True)
class Parts:
    """Made by the producer, and shared by all who work for it."""

    cluster: Cluster
    intake: Intake
    budget: Budget
    outcomes: Outcomes
    events: Events
    bell: Bell
    settings_of: Callable[[str], Settings]
    router_of: Callable[[str], Router]
    forget_router: Callable[[str], None]
    keeper: Keeper | None
    retry: Retry
    transactional_id: str | None = None
