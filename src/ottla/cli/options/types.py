"""Types of options: whole numbers, durations, sizes and places, with errors that say what is accepted."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.completion.values import GROUP_PREFIX, complete_group_places
from ottla.cli.values.places import Kind, Place, describe, parse_place
from ottla.cli.values.quantities import parse_duration, parse_size, show_duration, show_size
from ottla.cli.values.times import is_relative

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class Integer(click.ParamType[int]):
    """A whole number, within bounds."""

    name = "n"

    def __init__(self, minimum: int | None = None, maximum: int | None = None) -> None:
        self._minimum = minimum
        self._maximum = maximum

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number."""
        try:
            number = int(value)
        except ValueError:
            self.fail(f"{value!r} is not a whole number", param, ctx)
        if self._minimum is not None and number < self._minimum:
            self.fail(f"{number} is too small: at least {self._minimum}", param, ctx)
        if self._maximum is not None and number > self._maximum:
            self.fail(f"{number} is too large: at most {self._maximum}", param, ctx)
        return number


class _Quantity(click.ParamType[Any]):
    """A number with a unit, within bounds."""

    def __init__(
        self,
        parse: Callable[[str], float],
        show: Callable[[Any], str],
        minimum: float,
        maximum: float | None,
    ) -> None:
        self._parse = parse
        self._show = show
        self._minimum = minimum
        self._maximum = maximum

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return seconds or bytes."""
        if not isinstance(value, str):
            return value
        try:
            number = self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if number < self._minimum:
            self.fail(f"{value!r} is too small: at least {self._show(self._minimum)}", param, ctx)
        if self._maximum is not None and number > self._maximum:
            self.fail(f"{value!r} is too large: at most {self._show(self._maximum)}", param, ctx)
        return number


class Duration(_Quantity):
    """Seconds, written as `10s`, `5ms`, `4d` or a plain number."""

    name = "duration"

    def __init__(self, minimum: float = 0.0, maximum: float | None = None) -> None:
        super().__init__(parse_duration, show_duration, minimum, maximum)


class Size(_Quantity):
    """Bytes, written as `64MB`, `1MiB` or a plain number."""

    name = "size"

    def __init__(self, minimum: int = 0, maximum: int | None = None) -> None:
        super().__init__(parse_size, show_size, minimum, maximum)


class PlaceType(click.ParamType[Any]):
    """A place in a topic, of the kinds that a command can use."""

    name = "place"

    def __init__(self, kinds: Collection[Kind], *, is_end: bool = False, is_absolute: bool = False) -> None:
        self.kinds = frozenset(kinds)
        self._is_end = is_end
        self._is_absolute = is_absolute
        """Whether times relative to now are refused, because the command is resumed later."""

    @property
    def description(self) -> str:
        """How these places are written, for help texts."""
        return describe(self.kinds, is_end=self._is_end, is_absolute=self._is_absolute)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        """Return the places that have a name; behind `group:`, the groups of the cluster."""
        from click.shell_completion import CompletionItem

        if Kind.GROUP in self.kinds and incomplete.startswith(GROUP_PREFIX):
            return [CompletionItem(name) for name in complete_group_places(ctx, param, incomplete)]
        words = {Kind.EARLIEST: "earliest", Kind.LATEST: "latest", Kind.GROUP: GROUP_PREFIX}
        names = [word for kind, word in words.items() if kind in self.kinds and word.startswith(incomplete)]
        return [CompletionItem(name, is_part=name == GROUP_PREFIX) for name in names]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Place:
        """Return the place."""
        if not isinstance(value, str):
            place: Place = value
            return place
        try:
            place = parse_place(
                value,
                now=datetime.now(UTC),
                kinds=self.kinds,
                is_end=self._is_end,
                is_absolute=self._is_absolute,
            )
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if self._is_absolute and isinstance(place, datetime) and is_relative(value):
            fixed = place.isoformat(timespec="seconds")
            self.fail(f"{value!r} would be another time when the command is resumed: write {fixed}", param, ctx)
        return place


def parsed(parse: Callable[[str], object]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return a callback that turns the ValueError of `parse` into an error that names the option."""

    def parse_text(text: str, context: click.Context, parameter: click.Parameter) -> object:
        try:
            return parse(text)
        except ValueError as error:
            raise click.BadParameter(str(error), context, parameter) from error

    def callback(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(parse_text(text, context, parameter) for text in value)
        return None if value is None else parse_text(value, context, parameter)

    return callback
