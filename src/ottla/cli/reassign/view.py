"""What commands that move replicas show: plans, progress, receipts. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cli.output.bars import bar
from ottla.cli.output.tables import table
from ottla.cli.values.quantities import show_duration, show_size
from ottla.text import printable

if TYPE_CHECKING:
    from ottla.operations.moves import Plan, Progress, Receipt
    from ottla.operations.moves.preview import BrokerChange, Preview

_SHOWN = 20


def preview_text(plan: Plan, view: Preview, *, width: int | None) -> str:
    """Return what a plan would do."""
    if not plan.moves:
        return f"{printable(plan.purpose)}: nothing has to move"
    lines = [f"{printable(plan.purpose)}: {_count(view.partitions, 'partition')} change"]
    moved = f"  copies {_count(view.moved_replicas, 'replica')}, {show_size(view.moved_bytes)}"
    lines.append(f"{moved}; no plan for this copies fewer than {view.lower_bound:,} replicas")
    if view.removed_replicas:
        lines.append(f"  gives up {_count(view.removed_replicas, 'replica')} without copying")
    if view.leader_changes:
        lines.append(f"  gives {_count(view.leader_changes, 'partition')} another preferred leader")
    if view.moved_bytes and view.seconds is not None and view.rate is not None:
        rate = f"{show_size(view.rate)}/s of each broker"
        lines.append(f"  takes at least {show_duration(round(view.seconds))} at {rate}: {_busiest(view)}")
    before, after = view.spread(False), view.spread(True)
    lines.append(f"  replicas per broker: {before[0]:,} to {before[1]:,} before, {after[0]:,} to {after[1]:,} after")
    lines.append(f"  fullest broker: {view.fullest(False):.2f} times the mean before, {view.fullest(True):.2f} after")
    changed = [row for row in view.brokers if _is_changed(row)]
    headings = ("broker", "rack", "replicas", "after", "leaders", "after", "bytes", "after", "receives", "sends")
    lines.append(table(headings, [_row(row) for row in changed[:_SHOWN]], width=width, indent=2))
    if len(changed) > _SHOWN:
        lines.append(f"  and {len(changed) - _SHOWN} more brokers; --json has all")
    return "\n".join(lines)


def _is_changed(row: BrokerChange) -> bool:
    return len({*row.replicas}) > 1 or len({*row.leaders}) > 1 or bool(row.received_bytes or row.sent_bytes)


def _busiest(view: Preview) -> str:
    row = max(view.brokers, key=lambda row: max(row.received_bytes, row.sent_bytes))
    verb = "receive" if row.received_bytes >= row.sent_bytes else "send"
    return f"broker {row.broker} has to {verb} {show_size(view.busiest_bytes)}"


def _row(row: BrokerChange) -> list[str]:
    return [
        str(row.broker) if row.is_alive else f"{row.broker} (down)",
        row.rack or "-",
        f"{row.replicas[0]:,}",
        f"{row.replicas[1]:,}",
        f"{row.leaders[0]:,}",
        f"{row.leaders[1]:,}",
        show_size(row.size_bytes[0]),
        show_size(row.size_bytes[1]),
        show_size(row.received_bytes) if row.received_bytes else "-",
        show_size(row.sent_bytes) if row.sent_bytes else "-",
    ]


def progress_text(progress: Progress, *, has_bar: bool = True) -> str:
    """Return a line about a run, with a bar where it is drawn again and again."""
    from ottla.operations.moves.progress import Stage

    done, total = progress.count(Stage.DONE), len(progress.stages)
    share = 1 - progress.left_bytes / progress.total_bytes if progress.total_bytes else (done / total if total else 1.0)
    parts = [
        f"{done:,} of {total:,} partitions",
        f"{show_size(progress.left_bytes)} left",
    ]
    if progress.bytes_per_second:
        parts.append(f"{show_size(round(progress.bytes_per_second))}/s")
    if progress.seconds_left is not None and progress.left_bytes:
        parts.append(f"{show_duration(max(1, round(progress.seconds_left)))} left")
    if progress.throttle is not None:
        parts.append(f"throttle {show_size(progress.throttle)}/s")
    if progress.is_paused:
        parts.append("paused")
    if blocked := progress.count(Stage.BLOCKED):
        parts.append(f"{blocked:,} blocked")
    if changed := progress.count(Stage.CHANGED):
        parts.append(f"{changed:,} changed by others")
    if progress.lost:
        parts.append(f"down: {', '.join(map(str, sorted(progress.lost)))}")
    text = ", ".join(parts)
    return f"{bar(max(0.0, min(1.0, share)))}  {text}" if has_bar else text


def receipt_text(receipt: Receipt) -> str:
    """Return how a run ended."""
    placed = receipt.partitions - len(receipt.differences)
    lines = [
        f"{receipt.purpose}: {receipt.outcome}; {placed:,} of {_count(receipt.partitions, 'partition')} as planned,"
        f" {show_size(receipt.moved_bytes)} of copies"
        + (f" in {show_duration(round(receipt.seconds, 1))}" if receipt.seconds else "")
    ]
    lines += differences_lines(receipt)
    lines += [f"  {note}" for note in receipt.notes]
    return "\n".join(lines)


def differences_lines(receipt: Receipt) -> list[str]:
    """Return a line for each partition that is not as planned, up to some number."""
    lines = []
    for each in receipt.differences[:_SHOWN]:
        present = ",".join(map(str, each.present)) or "gone"
        lines.append(f"  {each.partition}: {present}, planned {','.join(map(str, each.planned))}")
    if len(receipt.differences) > _SHOWN:
        lines.append(f"  and {len(receipt.differences) - _SHOWN:,} more; --json has all")
    return lines


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' if count != 1 else ''}"
