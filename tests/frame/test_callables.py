"""Which functions are accepted as callbacks: the quick check agrees with the full one."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from ottla import config


async def coroutine(a: int) -> None: ...
async def asynchronous(a: int) -> AsyncIterator[int]:
    yield a


def generator(a: int) -> Iterator[int]:
    yield a


def keyword_only(a: int, *, b: int) -> None: ...
def with_default(a: int, b: int = 1) -> None: ...
def variadic(*a: int) -> None: ...
def positional(a: int, /, b: int) -> None: ...
def keywords(a: int, **b: int) -> None: ...


@functools.wraps(positional)
def wrapped(*a: Any) -> None: ...


class Callable1:
    def __call__(self, a: int) -> None: ...
    def method(self, a: int) -> None: ...


FUNCTIONS: list[Any] = [
    coroutine, asynchronous, generator, keyword_only, with_default, variadic, positional, keywords, wrapped,
    lambda: None, lambda a: None, lambda a, b: None, Callable1(), Callable1().method, Callable1, print, len, dict.get,
    functools.partial(with_default, 1), None, 7,
]  # fmt: skip


@pytest.mark.parametrize("arguments", [0, 1, 2])
@pytest.mark.parametrize(
    "function", FUNCTIONS, ids=lambda function: getattr(function, "__name__", type(function).__name__)
)
def test_first_sight_and_a_full_look_agree(
    function: Callable[..., Any], arguments: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_first_sight = config._is_plain(function, arguments)
    monkeypatch.setattr(config, "_is_plain", lambda *_: False)
    why = config.why_not_called(function, arguments)
    assert not (at_first_sight and why), why
