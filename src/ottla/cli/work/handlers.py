"""Handlers of `ottla work run`: imported by `module:function`, checked, and called with the argument they take."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

from ottla.cli.errors import UsageError
from ottla.config import why_not_called
from ottla.engines.fleet.handlers import call

if TYPE_CHECKING:
    from ottla.engines.fleet.unit import Unit

Handler: TypeAlias = "Callable[[Unit], object]"


class Takes(Enum):
    """What a handler is called with."""

    UNIT = "unit"
    BATCHES = "batches"
    """Each Arrow batch of the unit."""
    RECORDS = "records"
    """Each record."""
    RANGE = "range"
    """Only the offsets; nothing is read."""


def load(text: str, takes: Takes) -> Handler:
    """Import `module:function`, also from the current folder. Raises `UsageError` if it is not a handler."""
    name, colon, path = text.partition(":")
    if not (colon and name and path):
        raise UsageError(f"--handler {text!r} is not MODULE:FUNCTION, for example shop.clicks:handle")
    handler: Any = _module(name)
    for part in path.split("."):
        handler = _attribute(handler, part, name)
    if (reason := why_not_called(handler, 1)) is not None:
        raise UsageError(f"--handler: {text} {reason}")
    return _adapted(handler, takes)


def _module(name: str) -> Any:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UsageError(f"--handler: no module {error.name} in {here} or on the Python path") from error
        raise UsageError(f"--handler: module {name} cannot be imported: {_reason(error)}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a module may do anything, even call sys.exit()
        raise UsageError(f"--handler: module {name} cannot be imported: {_reason(error)}") from error


def _attribute(owner: Any, name: str, module: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError:
        pass
    close = difflib.get_close_matches(name, [public for public in dir(owner) if not public.startswith("_")], n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise UsageError(f"--handler: module {module} has no {name}{hint}")


def _adapted(handler: Callable[[Any], object], takes: Takes) -> Handler:
    def each_batch(unit: Unit) -> None:
        for batch in unit.read():
            call(handler, batch)

    def each_record(unit: Unit) -> None:
        for record in unit.records():
            call(handler, record)

    def range_alone(unit: Unit) -> None:
        call(handler, unit.range)

    adapted: dict[Takes, Handler] = {
        Takes.UNIT: handler,
        Takes.BATCHES: each_batch,
        Takes.RECORDS: each_record,
        Takes.RANGE: range_alone,
    }
    return adapted[takes]


def _reason(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return text.splitlines()[0]
