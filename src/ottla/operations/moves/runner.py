"""Carries out a plan: begins moves a few at a time, throttles them, watches them, and cleans up however it ends.

Comes in: a cluster, a plan and the files beside it. Goes out: progress, notes for a person, and a `Receipt`. Everything
that must survive kill -9 is in the cluster or in the files: the next run of the same plan continues.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field, replace

from ottla.admin.reassignments import Errors, elect_preferred, reassign
from ottla.errors import DeadlineExceeded, ErrorCode, InputError, NetworkError, NoBrokerReachable, OttlaError
from ottla.model import TopicPartition
from ottla.net.cluster import Cluster
from ottla.net.deadline import Deadline
from ottla.net.metadata import Metadata
from ottla.operations.moves.checks import owned, require_cluster
from ottla.operations.moves.looking import Looker, readiness
from ottla.operations.moves.measuring import Gauge
from ottla.operations.moves.pacing import START, Limits, busiest_bytes, next_moves, next_rate, seconds_left
from ottla.operations.moves.plan_file import digest_of, write_plan
from ottla.operations.moves.progress import Progress, Receipt, Stage, compare
from ottla.operations.moves.reading import layout_of
from ottla.operations.moves.run_files import AUTOMATIC, UNLIMITED, Control, Rate, RunFiles, RunState
from ottla.operations.moves.stages import View, left_bytes, partition_of
from ottla.operations.moves.throttling import Throttles
from ottla.operations.moves.values import Plan

_CLEANING_SECONDS = 60.0
_STUCK_SECONDS = 90.0
_ELECTION_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How a plan is carried out."""

    rate: Rate = AUTOMATIC
    """Bytes per second of each broker, `auto` or `none`."""
    is_rate_given: bool = False
    """Whether `rate` replaces the one that was given to a run before it was killed."""
    limits: Limits = field(default_factory=Limits)
    interval: float = 2.0
    """Seconds between two looks at the cluster."""
    rate_interval: float = 10.0
    """Seconds between two changes of an automatic rate."""
    lost_seconds: float = 300.0
    """How long moves wait for a broker that went down before they are given up."""


def run_plan(
    cluster: Cluster,
    plan: Plan,
    files: RunFiles,
    *,
    options: RunOptions | None = None,
    tell: Callable[[str], None] = lambda _: None,
    watch: Callable[[Progress], None] = lambda _: None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Receipt:
    """Carry out a plan, or continue it. Returns the receipt, which is also written beside the plan.

    `files` are those beside the plan. `tell` is called with lines for people, `watch` with the progress, `options`
    limit what runs at a time. After `is_stopped` no further move begins, and those that run are awaited. Raises
    `InputError`, with nothing changed, if the plan cannot run now. If anything else is raised, also by a signal, what
    runs is moved back.
    """
    with files.locked():
        return _Run(cluster, plan, files, options or RunOptions(), tell=tell, watch=watch, is_stopped=is_stopped).run()


def cancel_plan(
    cluster: Cluster, plan: Plan, files: RunFiles, *, tell: Callable[[str], None] = lambda _: None
) -> Receipt:
    """Move what a dead run began back to its old replicas, and remove its throttles. Returns a receipt.

    Raises `InputError` if a process runs the plan, or if the plan is for another cluster.
    """
    with files.locked():
        return _Run(
            cluster, plan, files, RunOptions(), tell=tell, watch=lambda _: None, is_stopped=lambda: False
        ).cancel()


class _Run:
    """One run of a plan."""

    def __init__(
        self,
        cluster: Cluster,
        plan: Plan,
        files: RunFiles,
        options: RunOptions,
        *,
        tell: Callable[[str], None],
        watch: Callable[[Progress], None],
        is_stopped: Callable[[], bool],
    ) -> None:
        self._cluster = cluster
        self._plan = plan
        self._files = files
        self._options = options
        self._tell = tell
        self._watch = watch
        self._is_stopped = is_stopped
        self._moves = {move.partition: move for move in plan.moves}
        self._gauge = Gauge(cluster, plan)
        self._looker = Looker(cluster, plan)
        self._throttled: set[TopicPartition] = set()
        self._refused: Errors = {}
        self._lost_since: dict[int, float] = {}
        self._rate: int | None = None
        self._rate_at = 0.0
        self._is_held = False
        """Whether partitions elsewhere have too few in-sync replicas for more to begin."""
        self._stuck_told = False
        self._changed_told: set[TopicPartition] = set()

    def run(self) -> Receipt:
        """Carry out the plan."""
        started = time.monotonic()
        state = self._files.state()
        is_resumed = state is not None and state.digest == digest_of(self._plan)
        # Before anything else: what is said from now on is meant for this run.
        self._files.set_control(self._first_control(is_resumed=is_resumed))
        found, running, reasons = readiness(self._cluster, self._plan, interval=self._options.interval)
        if reasons:
            raise InputError("the plan cannot run now:\n  " + "\n  ".join(reasons))
        self._throttles = Throttles(self._cluster, {} if state is None else state.before)
        moving = owned(self._plan, running)
        if state is None and moving:
            self._throttles.adopt([self._moves[tp] for tp in moving], deadline=self._deadline())
        self._looker.min_in_sync = found.min_in_sync
        if state is not None and not is_resumed:
            self._tell(
                "a run of another plan in this file was killed: the rates that it found are put back at the end."
                " 'ottla throttles clear' removes throttled replicas that it left"
            )
            self._files.save_state(RunState(digest_of(self._plan), state.before))
        write_plan(self._files.undo, self._plan.undone())
        outcome = "stopped"
        try:
            if is_resumed or moving:
                self._tell("continuing the plan")
                self._adopt(self._looker.look()[0])
            self._gauge.begin(found)
            outcome = self._loop()
        except BaseException:
            with suppress(Exception):
                self._give_back(self._looker.look()[0].having(Stage.MOVING))
            raise
        finally:
            self._clean()
        return self._receipt(outcome, started)

    def cancel(self) -> Receipt:
        """End what an earlier run began."""
        started = time.monotonic()
        require_cluster(self._plan, self._cluster.metadata((), deadline=self._deadline()))
        state = self._files.state()
        self._throttles = Throttles(self._cluster, {} if state is None else state.before)
        try:
            self._throttled = set(self._moves)
            self._give_back(self._looker.look()[0].having(Stage.MOVING))
        finally:
            self._clean()
        return self._receipt("cancelled", started)

    def _first_control(self, *, is_resumed: bool) -> Control:
        """Return what is wanted at the beginning: what was said to a run that ended long ago does not count."""
        control = replace(self._files.control(), is_cancelled=False) if is_resumed else Control()
        return replace(control, rate=None) if self._options.is_rate_given else control

    def _deadline(self) -> Deadline:
        return self._cluster.deadline()

    def _adopt(self, view: View) -> None:
        """Throttle what a run before this one began, and nothing else."""
        moving = view.having(Stage.MOVING)
        self._throttles.remove([self._moves[tp] for tp in self._moves if tp not in moving], deadline=self._deadline())
        self._throttled = moving

    def _loop(self) -> str:
        unanswered_since: float | None = None
        while True:
            try:
                outcome = self._step()
                unanswered_since = None
            except (NetworkError, NoBrokerReachable, DeadlineExceeded) as error:
                now = time.monotonic()
                if unanswered_since is None:
                    unanswered_since = now
                    self._tell(f"the cluster does not respond: moves go on, and the run looks again: {error}")
                if self._is_stopped() or now - unanswered_since >= self._options.lost_seconds:
                    raise
                outcome = None
            if outcome is not None:
                return outcome
            self._sleep()

    def _step(self) -> str | None:
        """Look once and do what is due. Returns how the run ends, None if it goes on."""
        control = self._files.control()
        view, metadata = self._looker.look()
        self._note_lost(view, metadata)
        self._note_changed(view, metadata)
        self._release(view)
        if control.is_cancelled:
            self._tell("cancelling: partitions that move go back to their old replicas")
            self._give_back(view.having(Stage.MOVING))
            return "cancelled"
        progress = self._measure(view, metadata, control)
        self._watch(progress)
        is_ending = control.is_paused or self._is_stopped()
        begun = 0 if is_ending or self._is_held else self._begin(view, metadata)
        if not begun and not view.having(Stage.MOVING) - view.stalled:
            return self._idle_outcome(view, is_paused=control.is_paused)
        return None

    def _idle_outcome(self, view: View, *, is_paused: bool) -> str | None:
        """Return how the run ends if nothing moves and nothing can begin; None if it is worth waiting."""
        waiting = view.having(Stage.WAITING) - self._refused.keys()
        blocked = view.having(Stage.BLOCKED)
        if self._is_stopped():
            self._give_back(view.stalled)
            return "stopped"
        if not waiting and not blocked and not view.stalled:
            return "complete" if not self._refused else "incomplete"
        if waiting or is_paused:
            return None
        now = time.monotonic()
        is_over = all(now - since >= self._options.lost_seconds for since in self._lost_since.values())
        if not is_over:
            return None
        self._give_back(view.stalled)
        return "incomplete"

    def _begin(self, view: View, metadata: Metadata) -> int:
        """Begin as many moves as the limits allow. Returns how many."""
        waiting = [self._moves[tp] for tp in view.having(Stage.WAITING) - self._refused.keys()]
        moving = [self._moves[tp] for tp in view.having(Stage.MOVING)]
        chosen = next_moves(waiting, moving, leaders=view.leaders, unsafe=view.unsafe, limits=self._options.limits)
        if not chosen:
            return 0
        deadline = self._deadline()
        if self._rate is not None:
            if not moving:
                self._throttles.assume_nothing()
            self._set_rate(self._rate, metadata)
            # Noted first: lists that were changed though no response came are put right, too.
            self._throttled |= {move.partition for move in chosen if move.added}
            self._throttles.add([move for move in chosen if move.added], deadline=deadline)
        refused = reassign(self._cluster, {move.partition: move.after for move in chosen}, deadline=deadline)
        for tp, error in refused.items():
            self._tell(f"{tp} is not moved: {error}")
        self._refused |= refused
        return len(chosen) - len(refused)

    def _release(self, view: View) -> None:
        """Take the throttles off partitions that have arrived."""
        finished = self._throttled - view.having(Stage.MOVING)
        if finished:
            self._throttles.remove([self._moves[tp] for tp in finished], deadline=self._deadline())
            self._throttled -= finished

    def _measure(self, view: View, metadata: Metadata, control: Control) -> Progress:
        sizes = self._gauge.sizes(metadata, view.having(Stage.MOVING))
        left = left_bytes(self._plan, view, sizes)
        total = sum(sum(targets.values()) for targets in left.values())
        self._gauge.copies.note(self._plan, view, sizes)
        speed = self._gauge.speed(total, view.having(Stage.MOVING))
        self._choose_rate(control, metadata, view)
        stuck = self._gauge.seconds_without_progress
        if view.having(Stage.MOVING) - view.stalled and stuck > _STUCK_SECONDS and not self._stuck_told:
            self._stuck_told = True
            targets = sorted({broker for tp in view.having(Stage.MOVING) for broker in self._moves[tp].added})
            self._tell(
                f"what is left to copy to brokers {', '.join(map(str, targets))} has not become less for {stuck:.0f} s:"
                " they may get more from producers than the throttle allows. A higher rate helps"
            )
        busiest = busiest_bytes(left, view.leaders)
        return Progress(
            view.stages,
            total,
            self._plan.moved_bytes,
            speed,
            seconds_left(left_bytes=total, busiest=busiest, measured=speed, rate=self._rate),
            self._rate,
            control.is_paused,
            view.lost,
        )

    def _choose_rate(self, control: Control, metadata: Metadata, view: View) -> None:
        """Follow the rate that a person wants, or how the cluster takes the load."""
        wanted = self._options.rate if control.rate is None else control.rate
        now = time.monotonic()
        is_due = now - self._rate_at >= self._options.rate_interval
        if is_due:
            self._rate_at = now
            signs = self._gauge.signs(self._looker.min_in_sync)
            self._hold(signs.under_minimum)
        if wanted == UNLIMITED:
            if self._rate is not None:
                self._throttles.restore(deadline=self._deadline())
                self._rate = None
        elif isinstance(wanted, int):
            self._set_rate(wanted, metadata)
        elif self._rate is None:
            self._set_rate(START, metadata)
        elif is_due and view.having(Stage.MOVING) - view.stalled:
            self._set_rate(next_rate(self._rate, signs.load, calm=self._gauge.calm), metadata)

    def _hold(self, under_minimum: Collection[TopicPartition]) -> None:
        """Begin nothing while partitions elsewhere have too few in-sync replicas."""
        if bool(under_minimum) != self._is_held:
            self._is_held = bool(under_minimum)
            names = ", ".join(map(str, sorted(under_minimum)[:3]))
            self._tell(
                f"no further move begins: {names} have fewer in-sync replicas than min.insync.replicas"
                if self._is_held
                else "all partitions have enough in-sync replicas again: moves begin"
            )

    def _set_rate(self, rate: int, metadata: Metadata) -> None:
        brokers = {broker for move in self._plan.moves if move.added for broker in (*move.before, *move.after)}
        alive = brokers & metadata.brokers.keys()
        known = set(self._throttles.before)
        self._throttles.find_rates(alive, deadline=self._deadline())
        if set(self._throttles.before) != known:
            # Before anything is changed: after kill -9, the next run puts back what this one found.
            self._files.save_state(RunState(digest_of(self._plan), self._throttles.before))
        self._throttles.set_rate(alive, rate, deadline=self._deadline())
        self._rate = rate

    def _note_lost(self, view: View, metadata: Metadata) -> None:
        now = time.monotonic()
        for broker in sorted(view.lost - self._lost_since.keys()):
            self._lost_since[broker] = now
            needing = sum(broker in move.added for tp, move in self._moves.items() if tp not in view.having(Stage.DONE))
            if needing:
                waiting = f"{needing} partition{'s wait' if needing > 1 else ' waits'}"
                self._tell(f"broker {broker} is down: {waiting} for it, the others go on")
        for broker in sorted(self._lost_since.keys() - view.lost):
            del self._lost_since[broker]
            if broker in metadata.brokers:
                self._tell(f"broker {broker} is back")

    def _note_changed(self, view: View, metadata: Metadata) -> None:
        changed = view.having(Stage.CHANGED)
        for tp in sorted(changed - self._changed_told):
            partition = partition_of(metadata, tp)
            replicas = ",".join(map(str, partition.replicas)) if partition is not None else ""
            self._tell(f"{tp} stays as it is: another program has given it the replicas {replicas}")
        self._changed_told = changed

    def _give_back(self, partitions: Collection[TopicPartition]) -> None:
        """Move partitions back to their old replicas, in the old order, and wait until they have arrived."""
        if not partitions:
            return
        deadline = Deadline.after(_CLEANING_SECONDS)
        # Another target, even the old replicas, would only count at the next change of the in-sync replicas.
        errors = reassign(self._cluster, dict.fromkeys(partitions), deadline=deadline)
        ended = [tp for tp in partitions if tp not in errors]
        # Ending a move leaves the replicas in the order of its target. The same ones in another order apply at once.
        errors |= reassign(self._cluster, {tp: self._moves[tp].before for tp in ended}, deadline=deadline)
        for tp, error in sorted(errors.items()):
            if error.code is not ErrorCode.no_reassignment_in_progress:  # else it arrived a moment before
                self._tell(f"{tp} is not moved back: {error}")

    def _clean(self) -> None:
        """Remove every throttle of this run. What cannot be removed is named."""
        try:
            deadline = Deadline.after(_CLEANING_SECONDS)
            if self._throttled:
                self._throttles.remove([self._moves[tp] for tp in self._throttled], deadline=deadline)
                self._throttled = set()
            self._throttles.restore(deadline=deadline)
            if not self._throttles.left:
                self._files.forget()
            for broker, reason in self._throttles.left.items():
                self._tell(
                    f"the throttle of broker {broker} is not removed: {reason}. No replica is throttled by it; when the"
                    " broker is back, 'ottla throttles clear' removes it"
                )
        except OttlaError as error:
            self._tell(f"throttles are not removed: {error}\n'ottla throttles clear' removes them")

    def _receipt(self, outcome: str, started: float) -> Receipt:
        notes: list[str] = []
        if outcome == "complete":
            notes += self._elect()
        metadata = self._cluster.metadata({tp.topic for tp in self._moves}, deadline=self._deadline())
        differences = compare(self._plan, layout_of(metadata, {}))
        missing = {each.partition for each in differences}
        done = [move for tp, move in self._moves.items() if tp not in missing]
        if outcome == "complete" and differences:
            outcome = "incomplete"
        receipt = Receipt(
            self._plan.cluster_id,
            self._plan.purpose,
            digest_of(self._plan),
            outcome,
            len(self._moves),
            differences,
            sum(len(move.added) for move in done),
            sum(move.moved_bytes for move in done),
            time.monotonic() - started,
            tuple(sorted(self._lost_since)),
            dict(self._throttles.left),
            (*notes, *(f"{tp}: {error}" for tp, error in self._refused.items())),
        )
        self._files.write_receipt(receipt.to_json())
        return receipt

    def _elect(self) -> list[str]:
        """Have the preferred replicas lead. Brokers that are not ready to are named."""
        metadata = self._cluster.metadata({tp.topic for tp in self._moves}, deadline=self._deadline())
        wrong = [
            tp
            for tp, move in self._moves.items()
            if (partition := partition_of(metadata, tp)) is not None and partition.leader != move.after[0]
        ]
        if not wrong:
            return []
        _, errors = elect_preferred(self._cluster, wrong, deadline=Deadline.after(_ELECTION_SECONDS))
        return [f"{tp}: {error}" for tp, error in sorted(errors.items())]

    def _sleep(self) -> None:
        time.sleep(self._options.interval)
