"""The Delta log of an archive: one commit for each entry of the ledger, made by `deltalake`, without a JVM.

Recorded entries come in; the table lists exactly their files afterwards. The commit carries the entry's number as an
application transaction, so that doing it again does nothing.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ottla.errors import ConfigError, LakeError
from ottla.lake.layout import LakeSettings
from ottla.lake.values import Entry, LakeFile

if TYPE_CHECKING:
    from deltalake import DeltaTable

_APPLICATION = "ottla"
_EARLIEST, _LATEST = -62_135_596_800.0, 253_402_300_000.0
"""Seconds since 1970, years 1 to 9999: what can be written as a date."""


def commit(root: Path, settings: LakeSettings, entry: Entry) -> None:
    """Adds the entry's files to the table, which is created if there is none, unless they were added before."""
    deltalake = _imported()
    try:
        table = _table(root, settings)
        if (table.transaction_version(_APPLICATION) or 0) >= entry.number:
            return
        table.create_write_transaction(
            [_action(file) for file in entry.files],
            mode="append",
            schema=settings.table_schema,
            partition_by=list(settings.partition_by),
            commit_properties=deltalake.CommitProperties(
                app_transactions=[deltalake.Transaction(_APPLICATION, entry.number)]
            ),
        )
    except deltalake.exceptions.DeltaError as error:
        if (_table(root, settings).transaction_version(_APPLICATION) or 0) < entry.number:
            raise LakeError(root, f"entry {entry.number} could not be committed to the Delta log: {error}") from error


def live_files(root: Path) -> set[str]:
    """The files that the table lists, relative to the archive."""
    deltalake = _imported()
    if not deltalake.DeltaTable.is_deltatable(str(root)):
        return set()
    actions: Any = deltalake.DeltaTable(str(root)).get_add_actions(flatten=True)
    return set(actions.column(actions.schema.get_field_index("path")).to_pylist()) if len(actions) else set()


def require() -> None:
    """Raises if Delta tables cannot be written, with what to install."""
    _imported()


def _table(root: Path, settings: LakeSettings) -> DeltaTable:
    deltalake = _imported()
    if deltalake.DeltaTable.is_deltatable(str(root)):
        found: DeltaTable = deltalake.DeltaTable(str(root))
        return found
    made: DeltaTable = deltalake.DeltaTable.create(
        str(root),
        settings.table_schema,
        mode="ignore",
        partition_by=list(settings.partition_by),
        name="ottla",
        description="records of Kafka topics",
    )
    return made


def _action(file: LakeFile) -> Any:
    from deltalake.transaction import AddAction

    return AddAction(
        path=file.path,
        size=file.size_bytes,
        partition_values=_values(file),
        modification_time=int(datetime.now(UTC).timestamp() * 1000),
        data_change=True,
        stats=_statistics(file),
    )


def _values(file: LakeFile) -> dict[str, str | None]:
    # A whole number is written without the zeros that make folders sort.
    return {
        name: str(int(value)) if name in ("hour", "partition") and value is not None else value
        for name, value in file.values.items()
    }


def _statistics(file: LakeFile) -> str:
    lowest: dict[str, Any] = {"offset": file.first_offset}
    highest: dict[str, Any] = {"offset": file.last_offset}
    if file.first_time > _EARLIEST and file.last_time < _LATEST:
        lowest["timestamp"], highest["timestamp"] = _moment(file.first_time), _moment(file.last_time, up=True)
    if "partition" not in file.values:
        lowest["partition"] = highest["partition"] = file.range.partition
    if "topic" not in file.values:
        lowest["topic"] = highest["topic"] = file.range.topic
    return msgspec.json.encode({"numRecords": file.rows, "minValues": lowest, "maxValues": highest}).decode()


def _moment(seconds: float, *, up: bool = False) -> str:
    """Delta keeps milliseconds in statistics: what is cut off must not make a bound too narrow."""
    millis = int(seconds * 1000 // 1) + (1 if up else 0)
    return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _imported() -> Any:
    try:
        import deltalake
        import deltalake.exceptions
    except ImportError as error:
        raise ConfigError("Delta tables need an extra package: pip install 'ottla[delta]'") from error
    return deltalake
