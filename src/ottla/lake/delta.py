"""The Delta log of an archive: one commit per ledger entry, made by `deltalake`, without a JVM.

Recorded entries come in; afterwards the table lists exactly their files. A commit carries the entry's number as an
application transaction, so that committing an entry again does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from ottla.errors import ConfigError, LakeDamaged, LakeError
from ottla.lake.layout import LakeSettings
from ottla.lake.values import Entry, LakeFile

if TYPE_CHECKING:
    from deltalake import DeltaTable

_APPLICATION = "ottla"
_EARLIEST, _LATEST = -62_135_596_800.0, 253_402_300_000.0
"""The years 1 to 9999, in seconds since 1970: what a date can express."""


def commit(root: Path, settings: LakeSettings, entry: Entry) -> None:
    """Add the entry's files to the table, unless they were added before. Creates the table if needed.

    Raises `LakeError` if the commit fails, and `ConfigError` if `deltalake` is not installed.
    """
    deltalake = _imported()
    try:
        table = _table(root, settings)
        if (table.transaction_version(_APPLICATION) or 0) >= entry.number:
            return  # another archiver has published this entry
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
            raise LakeError(root, f"cannot commit entry {entry.number} to the Delta log: {error}") from error


def transaction(root: Path) -> int:
    """Return the number of the last entry in the table; 0 without a table. Raises `LakeDamaged` if it is unreadable."""
    deltalake = _imported()
    try:
        if not deltalake.DeltaTable.is_deltatable(str(root)):
            return 0
        return deltalake.DeltaTable(str(root)).transaction_version(_APPLICATION) or 0
    except deltalake.exceptions.DeltaError as error:
        raise LakeDamaged(root, f"its Delta log cannot be read: {error}") from error


def go_back(root: Path, number: int) -> None:
    """Restore the table to what it was after that entry, for a ledger that ends there. Deletes no file.

    Raises `LakeError` if a VACUUM has deleted files of that version.
    """
    deltalake = _imported()
    try:
        table = deltalake.DeltaTable(str(root))
        for version in range(table.version(), -1, -1):
            table.load_as_version(version)
            if (table.transaction_version(_APPLICATION) or 0) <= number:
                break
        done = deltalake.CommitProperties(app_transactions=[deltalake.Transaction(_APPLICATION, number)])
        deltalake.DeltaTable(str(root)).restore(version, commit_properties=done)
    except deltalake.exceptions.DeltaError as error:
        raise LakeError(
            root,
            f"its Delta table cannot be restored to entry {number}, perhaps because a VACUUM has deleted the files of"
            f" that version; restore the missing ledger entries from a copy: {error}",
        ) from error


@dataclass(frozen=True, slots=True)
class Live:
    """A file of the table, as described in its log."""

    size_bytes: int
    rows: int | None
    offsets: tuple[int | None, int | None]
    values: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Table:
    """The state of the table, from its log."""

    transaction: int = 0
    """The number of the last entry in it."""
    files: Mapping[str, Live] = field(default_factory=dict)
    """By path, relative to the archive."""
    masked: frozenset[str] = frozenset()
    """Files with deleted rows (deletion vectors)."""
    fields: list[tuple[str, str]] | None = None
    """Names and types of its columns; None without a table."""

    def differs(self, file: LakeFile) -> str:
        """Return how the log's statistics differ from the ledger; empty if they do not.

        Readers skip files by these statistics, so a wrong one hides records.
        """
        live = self.files[file.path]
        if live.size_bytes != file.size_bytes:
            return f"that it has {live.size_bytes} bytes, the ledger {file.size_bytes}"
        if live.rows not in (None, file.rows):
            return f"that it has {live.rows} records, the ledger {file.rows}"
        first, last = live.offsets
        if first not in (None, file.first_offset) or last not in (None, file.last_offset):
            return f"that it has offsets {first} to {last}, the ledger {file.first_offset} to {file.last_offset}"
        if live.values != _values(file):
            return f"that it is of {dict(live.values)}, the ledger {_values(file)}"
        return ""


def look(root: Path) -> Table:
    """Return the current state of the table. Raises `LakeDamaged` if its log cannot be read."""
    deltalake = _imported()
    try:
        if not deltalake.DeltaTable.is_deltatable(str(root)):
            return Table()
        table = deltalake.DeltaTable(str(root))
        actions: Any = table.get_add_actions(flatten=True)
        rows = pa.table(actions).to_pylist() if len(actions) else []
        names = list(table.metadata().partition_columns)
        masked = pa.table(table.deletion_vectors()).column("filepath").to_pylist()
        return Table(
            transaction=table.transaction_version(_APPLICATION) or 0,
            files={row["path"]: _live(row, names) for row in rows},
            masked=frozenset(row["path"] for row in rows if any(map(_ends(row["path"]), masked))),
            fields=[(column.name, column.type.to_json()) for column in table.schema().fields],
        )
    except BaseException as error:
        # Damage can make deltalake's Rust code panic, and PanicException is not an Exception.
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise LakeDamaged(root, f"its Delta log cannot be read: {error}") from error
        raise


def live_files(root: Path) -> set[str]:
    """Return the files in the table, relative to the archive. Raises `LakeDamaged` if its log cannot be read."""
    return set(look(root).files)


def fields_of(schema: pa.Schema) -> list[tuple[str, str]]:
    """Return names and types of columns in Delta's form."""
    return [(column.name, column.type.to_json()) for column in _imported().Schema.from_arrow(schema).fields]


def _ends(path: str) -> Callable[[str], bool]:
    return lambda address: address.endswith(f"/{path}")


def _live(row: Mapping[str, Any], names: Sequence[str]) -> Live:
    values = {name: None if row[f"partition.{name}"] is None else str(row[f"partition.{name}"]) for name in names}
    return Live(row["size_bytes"], row["num_records"], (row.get("min.offset"), row.get("max.offset")), values)


def require() -> None:
    """Raise `ConfigError`, with what to install, if Delta tables cannot be written."""
    _imported()


def _table(root: Path, settings: LakeSettings) -> DeltaTable:
    deltalake = _imported()
    if deltalake.DeltaTable.is_deltatable(str(root)):
        existing: DeltaTable = deltalake.DeltaTable(str(root))
        return existing
    created: DeltaTable = deltalake.DeltaTable.create(
        str(root),
        settings.table_schema,
        mode="ignore",
        partition_by=list(settings.partition_by),
        name="ottla",
        description="records of Kafka topics",
    )
    return created


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
    # Delta writes whole numbers without the leading zeros that make folders sort.
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
    """Round to milliseconds, Delta's unit in statistics; `up` rounds up, so that the upper bound stays one."""
    millis = int(seconds * 1000 // 1) + (1 if up else 0)
    return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _imported() -> Any:
    try:
        import deltalake
        import deltalake.exceptions
    except ImportError as error:
        raise ConfigError("Delta tables need an extra package: pip install 'ottla[delta]'") from error
    return deltalake
