"""Archives of Kafka records on disk: folders of Parquet files with a ledger of what was archived.

`Lake` opens an archive, records what tasks have staged and publishes it, exactly once. `status` and `verifying` inspect
it. This room knows no engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla._lazy import lazy

if TYPE_CHECKING:
    from ottla.lake.lake import Lake

_HOMES = {"Lake": "ottla.lake.lake"}

__all__ = ["Lake"]

if not TYPE_CHECKING:  # otherwise a type checker would accept every misspelt name
    __getattr__, __dir__ = lazy(__name__, _HOMES)
