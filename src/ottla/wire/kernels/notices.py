"""Says that kernels are about to be compiled, which takes seconds, to who wants to know.

It imports nothing: a program can ask to be notified before it knows whether it needs a kernel.
"""

from __future__ import annotations

from collections.abc import Callable

_PURPOSES = {
    "decoding": "reading",
    "scanning": "reading",
    "encoding": "writing",
    "gathering": "writing",
    "murmur": "writing",
    "summing": "counting",
    "tallying": "counting",
    "checksum": "checksums",
}
"""What the kernels of a module are for; those of all others are for the gateway."""
_listeners: list[Callable[[str], None]] = []
_said: set[str] = set()


def notify_once(listener: Callable[[str], None]) -> None:
    """Call this in this process before the first kernel of each purpose is compiled; not if all are in the cache."""
    _listeners[:] = [listener]


def compiling(module: str) -> None:
    """Tell the listener, once for each purpose. The module is that of the kernel."""
    purpose = _PURPOSES.get(module.rpartition(".")[2], "the gateway")
    if purpose not in _said:
        _said.add(purpose)
        for listener in _listeners:
            listener(purpose)
