"""The files beside a plan: what a run must remember, what a person wants of it, its lock, its receipt.

`drain.json` has `drain.state.json`, `drain.control.json`, `drain.receipt.json`, `drain.undo.json` and `drain.lock`. A
run writes what it found before it changes it, so that the next run can put it back after kill -9.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ottla.errors import InputError
from ottla.files import replace_whole

AUTOMATIC = "auto"
UNLIMITED = "none"
Rate = int | str
"""Bytes per second, `auto` or `none`."""


@dataclass(frozen=True, slots=True)
class Control:
    """What a person wants of a run."""

    is_paused: bool = False
    is_cancelled: bool = False
    rate: Rate | None = None
    """None: as the run was started."""


@dataclass(frozen=True, slots=True)
class RunState:
    """What a run remembers: the plan it belongs to, and the throttles of brokers that it found."""

    digest: str
    before: Mapping[int, Mapping[str, str | None]] = field(default_factory=dict)
    """Rates by broker and setting, None where there was none."""


class RunFiles:
    """The files beside one plan."""

    def __init__(self, plan: Path) -> None:
        self.plan = plan
        stem = plan.name.removesuffix(".json")
        self.undo = plan.with_name(f"{stem}.undo.json")
        self.receipt = plan.with_name(f"{stem}.receipt.json")
        self._state = plan.with_name(f"{stem}.state.json")
        self._control = plan.with_name(f"{stem}.control.json")
        self._lock = plan.with_name(f"{stem}.lock")

    def control(self) -> Control:
        """Return what is wanted. A file that is damaged counts as none: it is replaced whole, never in part."""
        rows = _read(self._control)
        rate = rows.get("throttle")
        return Control(
            rows.get("pause") is True,
            rows.get("cancel") is True,
            rate if isinstance(rate, int) or rate in (AUTOMATIC, UNLIMITED) else None,
        )

    def set_control(self, control: Control) -> None:
        """Tell the run by `control`. Raises `InputError` if the file cannot be written."""
        rows = {"pause": control.is_paused, "cancel": control.is_cancelled, "throttle": control.rate}
        _write(self._control, rows)

    def state(self) -> RunState | None:
        """Return what an earlier run remembered, None if there was none."""
        rows = _read(self._state)
        if not rows:
            return None
        before = {int(broker): dict(own) for broker, own in dict(rows.get("before", {})).items()}
        return RunState(str(rows.get("digest")), before)

    def save_state(self, state: RunState) -> None:
        """Remember `state`."""
        before = {str(broker): dict(own) for broker, own in state.before.items()}
        _write(self._state, {"digest": state.digest, "before": before})

    def forget(self) -> None:
        """Remove what only a run in progress needs."""
        for path in (self._state, self._control):
            path.unlink(missing_ok=True)

    def write_receipt(self, receipt: Mapping[str, Any]) -> None:
        """Write the receipt."""
        _write(self.receipt, receipt)

    def is_running(self) -> bool:
        """Whether a process runs the plan on this machine."""
        try:
            with self.locked():
                return False
        except InputError:
            return True

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only run of the plan, until the process ends. Raises `InputError` if another process is."""
        try:
            handle = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise InputError(f"the folder of {self.plan} cannot be written: {error.strerror or error}") from error
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InputError(f"another process is running the plan {self.plan}") from error
            yield
        finally:
            os.close(handle)


def _read(path: Path) -> dict[str, Any]:
    try:
        rows = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return rows if isinstance(rows, dict) else {}


def _write(path: Path, rows: Mapping[str, Any]) -> None:
    try:
        replace_whole(path, (json.dumps(rows, indent=1) + "\n").encode())
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from error
