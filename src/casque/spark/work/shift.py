"""Runs the jobs of one parcel on an executor, until the deadline of the trip at the latest.

Handlers run in a thread of their own, so that the task's main thread can report outcomes as they come and can end the
task at the deadline, even if a handler hangs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from queue import SimpleQueue
from typing import Protocol

import msgspec

from casque.clock import SystemClock
from casque.service import Outcome, is_silent_ack
from casque.spark.work.parcels import Answer
from casque.spark.work.reports import REPORT_BYTES, REPORT_MAX, WHOLE, Destination, Range, Reporter
from casque.types import JobRecord

REPORT_S = 0.5
"""Outcomes are reported this often. Most trips are over before, and need no report."""
LOOK_S = 0.25
SLOW_S = 1.0
"""If no job has started for this long, the jobs that wait are handed over to the driver: other cores may be free."""
HALT_S = 1.0
"""How long a handler that can be cancelled may take to end at the deadline."""
IDLE_S = 0.3
IDLE_LOOKS = 2


class Terms(msgspec.Struct, frozen=True):
    """What a task needs to know about its trip."""

    until_ms: int | None = None
    """By the wall clock: nothing starts after it, and the task ends. The clocks of a cluster agree well enough."""
    reports: Destination | None = None


class Shift:
    """The jobs of a parcel while they run. Shared by the thread that runs them and the main thread, without a lock:
    each entry has one writer, and a job that is marked as begun too early is only left to its lease."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.outcomes: list[Outcome | None] = [None] * count
        self._begun = bytearray(count)
        self._reported = bytearray(count)
        self.handed_over = False
        self.ended = False
        self._stopped = False

    @property
    def begun(self) -> int:
        """Number of jobs that have started."""
        return sum(self._begun)

    def begin(self, index: int) -> bool:
        """Whether this job may start."""
        self._begun[index] = 1
        if self._stopped:
            self._begun[index] = 0
            return False
        return True

    def begin_all(self, indexes: range) -> bool:
        """Whether these jobs may start together."""
        self._begun[indexes.start : indexes.stop] = b"\x01" * len(indexes)
        if self._stopped:
            self._begun[indexes.start : indexes.stop] = bytes(len(indexes))
            return False
        return True

    def stop(self) -> None:
        """Nothing starts from here on."""
        self._stopped = True

    def news(self) -> Iterator[tuple[list[int], list[Range], list[Outcome]]]:
        """Outcomes that were not reported, in portions: their indexes, those done without a result, and the others."""
        fresh = [n for n, one in enumerate(self.outcomes) if one is not None and not self._reported[n]]
        start = 0
        while start < len(fresh):
            indexes: list[int] = []
            others: list[Outcome] = []
            silent: list[int] = []
            size = 0
            for index in fresh[start : start + REPORT_MAX]:
                one = self.outcomes[index]
                assert one is not None
                indexes.append(index)
                if is_silent_ack(one):
                    silent.append(index)
                    continue
                others.append(one)
                size += len(one.result or b"") + len(one.error or "")
                if size >= REPORT_BYTES:
                    break
            start += len(indexes)
            yield indexes, list(_ranges(silent)), others

    def confirm(self, indexes: Sequence[int]) -> None:
        for index in indexes:
            self._reported[index] = 1

    def waiting(self) -> list[Range]:
        """Jobs that have not started. Call `stop` first."""
        return list(_ranges([index for index in range(self.count) if not self._begun[index]]))

    def hand_over(self) -> None:
        """The jobs that wait are the driver's now."""
        self.handed_over = True

    def answer(self) -> Answer:
        """Everything that the driver does not know yet."""
        if all(self.outcomes) and not any(self._reported):
            return Answer([one for one in self.outcomes if one is not None])
        outcomes, running, unstarted = [], [], []
        for index in range(self.count):
            outcome = self.outcomes[index]
            if outcome is not None:
                if not self._reported[index]:
                    outcomes.append(outcome)
            elif self._begun[index]:
                running.append(index)
            elif not self.handed_over:
                unstarted.append(index)
        return Answer(outcomes, running, unstarted, self.handed_over)


class Team(Protocol):
    """Runs jobs; used from one thread, except for `halt`."""

    def work(self, shift: Shift, jobs: Sequence[JobRecord]) -> None: ...

    def halt(self) -> None:
        """The time is up: start nothing more. Called from the main thread, after `shift.stop()`."""
        ...

    def close(self) -> None: ...


class Hand:
    """One thread, a daemon: a handler that never returns must not keep the process alive."""

    def __init__(self) -> None:
        self._work: SimpleQueue[tuple[Callable[[], None], _Call]] = SimpleQueue()
        self._started = False

    def do(self, work: Callable[[], None]) -> _Call:
        if not self._started:
            threading.Thread(target=self._run, name="casque-spark-handler", daemon=True).start()
            self._started = True
        call = _Call()
        self._work.put((work, call))
        return call

    def end(self) -> None:
        if self._started:
            self._work.put((_end_thread, _Call()))

    def _run(self) -> None:
        while True:
            work, call = self._work.get()
            if work is _end_thread:
                return
            try:
                work()
            except BaseException as error:  # noqa: BLE001  raised again where it is waited for
                call.error = error
            finally:
                call.over.set()


class _Call:
    def __init__(self) -> None:
        self.over = threading.Event()
        self.error: BaseException | None = None


def _end_thread() -> None:
    """Recognised by identity."""


class EarlyReports:
    """A thread that reports outcomes while the task runs, and after it: then other tasks of the trip may still run, and
    Spark hands over nothing before they end.

    A task never waits for a report, because the driver may be busy with a large commit.
    """

    def __init__(self, destination: Destination) -> None:
        self.reporter = Reporter(destination)
        self._shifts: list[tuple[int, Shift]] = []
        self._started = False
        self._ended = False

    def add(self, number: int, shift: Shift) -> None:
        self._shifts.append((number, shift))
        if not self._started:
            threading.Thread(target=self._run, name="casque-spark-reports", daemon=True).start()
            self._started = True

    def end(self) -> None:
        """No more parcels follow."""
        self._ended = True

    def _run(self) -> None:
        pause = threading.Event()
        while self.reporter.works:
            pause.wait(REPORT_S)
            no_more = self._ended and all(shift.ended for _, shift in self._shifts)
            for number, shift in list(self._shifts):
                ended = shift.ended
                for indexes, done, outcomes in shift.news():
                    if not self.reporter.report(number, done, outcomes):
                        break
                    shift.confirm(indexes)
                if ended:
                    self._shifts.remove((number, shift))
            if no_more:
                break
        self.reporter.close()


class Shifts:
    """All parcels of one task, one after the other."""

    def __init__(self, team: Team, terms: Terms) -> None:
        self._team = team
        self._terms = terms
        self._clock = SystemClock()
        self._hand = Hand()
        self._stuck = False
        self._handed_over: set[int] = set()
        self._reports = None if terms.reports is None else EarlyReports(terms.reports)

    def run(self, number: int, jobs: Sequence[JobRecord], behind: Sequence[int] = ()) -> Answer:
        """`behind` are the numbers of the parcels that follow.

        Raises:
            Exception: the handler could not be called at all.
        """
        shift = Shift(len(jobs))
        if number in self._handed_over:
            shift.hand_over()
        elif self._left_s() > 0:
            self._run(shift, number, jobs, behind)
        return shift.answer()

    def close(self) -> None:
        if self._reports is not None:
            self._reports.end()
        if self._stuck:
            _end_process_later()
            return
        closing = self._hand.do(self._team.close)
        closing.over.wait()
        self._hand.end()

    def _run(self, shift: Shift, number: int, jobs: Sequence[JobRecord], behind: Sequence[int]) -> None:
        call = self._hand.do(lambda: self._team.work(shift, jobs))
        if self._reports is not None:
            self._reports.add(number, shift)
        begun, begun_ms = 0, self._clock.monotonic_ms()
        while not call.over.wait(self._pause_s()):
            if self._left_s() <= 0:
                shift.stop()
                self._team.halt()
                self._stuck = not call.over.wait(HALT_S)
                break
            if shift.begun > begun:
                begun, begun_ms = shift.begun, self._clock.monotonic_ms()
            elif self._clock.monotonic_ms() - begun_ms > SLOW_S * 1000:
                self._hand_over(shift, number, behind)
        shift.ended = True
        if call.error is not None:
            raise call.error

    def _hand_over(self, shift: Shift, number: int, behind: Sequence[int]) -> None:
        """Jobs behind a slow one need not wait for it. What the driver does not confirm is in the answer."""
        if self._reports is None:
            return
        if not shift.handed_over:
            shift.stop()
            if (waiting := shift.waiting()) and self._reports.reporter.report(number, [], [], waiting):
                shift.hand_over()
        for later in behind:
            if later not in self._handed_over and self._reports.reporter.report(later, [], [], [WHOLE]):
                self._handed_over.add(later)

    def _pause_s(self) -> float:
        return max(0.0, min(self._left_s(), LOOK_S))

    def _left_s(self) -> float:
        until_ms = self._terms.until_ms
        return float("inf") if until_ms is None else (until_ms - self._clock.wall_ms()) / 1000


def _ranges(indexes: list[int]) -> Iterator[Range]:
    """
    >>> list(_ranges([1, 2, 3, 7]))
    [(1, 4), (7, 8)]
    """
    for _, run in groupby(enumerate(indexes), lambda pair: pair[1] - pair[0]):
        members = [index for _, index in run]
        yield members[0], members[-1] + 1


def _end_process_later() -> None:
    """End this process, and with it a handler that hangs, as soon as no task runs in it. Spark replaces it.

    A thread cannot be killed, and would take the process's time for as long as Spark keeps it."""
    from pyspark import TaskContext

    def end_when_idle() -> None:
        pause = threading.Event()
        idle = 0
        while idle < IDLE_LOOKS:
            pause.wait(IDLE_S)
            idle = idle + 1 if TaskContext.get() is None else 0
        os._exit(1)

    if TaskContext.get() is not None:  # otherwise it is not a process of Spark's
        threading.Thread(target=end_when_idle, name="casque-spark-end", daemon=True).start()
