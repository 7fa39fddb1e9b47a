"""A sheet of named values and formulas: what is shown as the formula of a value is what computed it.

Names with given values, and formulas of names, come in; lines with their value and their inputs go out. A formula is
arithmetic (`+ - * /`, `ceil`, `max`, `min`) on names of the sheet. Pure.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache

_OPERATIONS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_ROUNDING = 1e-9
"""A share by which a quotient may exceed a whole number and still count as it: fractions are inexact."""


class Unit(Enum):
    """What a value counts, for those who show it."""

    COUNT = ""
    BYTES = "B"
    BYTE_RATE = "B/s"
    RECORD_RATE = "/s"
    SECONDS = "s"
    SHARE = "%"
    CORES = "cores"
    PER_BYTE = "s/B"


def ceil(value: float) -> float:
    """Return the next whole number; a value that exceeds one only by rounding is that number."""
    return float(math.ceil(value - abs(value) * _ROUNDING))


_FUNCTIONS: dict[str, Callable[..., float]] = {"ceil": ceil, "max": max, "min": min}


@dataclass(frozen=True, slots=True)
class Term:
    """A value by name, and where it comes from."""

    name: str
    value: float
    unit: Unit
    source: str = ""
    """What the value or the rule rests on; empty for what follows from the inputs alone."""
    is_assumed: bool = False
    """Whether it is a built-in figure, neither given nor measured."""


@dataclass(frozen=True, slots=True)
class Line:
    """A computed value with its formula and the inputs of it."""

    term: Term
    title: str
    formula: str
    inputs: tuple[Term, ...]

    @property
    def value(self) -> float:
        """The value."""
        return self.term.value


class Sheet:
    """Given values, and lines computed from them. A name is set once."""

    def __init__(self) -> None:
        self._terms: dict[str, Term] = {}
        self._lines: dict[str, Line] = {}

    @property
    def lines(self) -> tuple[Line, ...]:
        """All lines, in the order in which they were added."""
        return tuple(self._lines.values())

    def __getitem__(self, name: str) -> float:
        return self._terms[name].value

    def line(self, name: str) -> Line:
        """Return a line by its name."""
        return self._lines[name]

    def give(self, name: str, value: float, unit: Unit, *, source: str = "", is_assumed: bool = False) -> None:
        """Add a given value."""
        self._add(Term(name, float(value), unit, source, is_assumed))

    def compute(self, name: str, formula: str, unit: Unit, *, title: str, source: str = "") -> float:
        """Add a line and return its value. It is assumed if one of its inputs is."""
        inputs = tuple(self._terms[used] for used in names(formula))
        value = evaluate(formula, {term.name: term.value for term in inputs})
        term = Term(name, value, unit, source)
        self._add(term)
        self._lines[name] = Line(term, title, formula, inputs)
        return value

    def _add(self, term: Term) -> None:
        assert term.name not in self._terms, term.name
        self._terms[term.name] = term

    def assumptions(self, name: str) -> tuple[Term, ...]:
        """Return the built-in figures that a line rests on, directly or through other lines.

        A maximum of names rests on those that are the maximum; if one of them rests on nothing assumed, on none.
        """
        line = self._lines.get(name)
        if line is None:
            term = self._terms[name]
            return (term,) if term.is_assumed else ()
        is_maximum = line.formula == f"max({', '.join(names(line.formula))})"
        deciding = [term for term in line.inputs if not is_maximum or term.value == line.value]
        found = [self.assumptions(term.name) for term in deciding]
        if is_maximum and () in found:
            return ()
        return tuple({term.name: term for terms in found for term in terms}.values())


@cache
def _parsed(formula: str) -> ast.expr:
    return ast.parse(formula, mode="eval").body


@cache
def names(formula: str) -> tuple[str, ...]:
    """Return the names in a formula, in order, each once."""
    found = [node for node in ast.walk(_parsed(formula)) if isinstance(node, ast.Name) and node.id not in _FUNCTIONS]
    found.sort(key=lambda node: node.col_offset)
    return tuple(dict.fromkeys(node.id for node in found))


def evaluate(formula: str, values: Mapping[str, float]) -> float:
    """Return the value of a formula. Raises `KeyError` for a name without a value."""
    return _value(_parsed(formula), values)


def _value(node: ast.expr, values: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.Name(id=name):
            return values[name]
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATIONS[type(op)](_value(left, values), _value(right, values))
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return _FUNCTIONS[name](*(_value(argument, values) for argument in arguments))
        case _:
            raise TypeError(f"a formula has no {type(node).__name__}")
