"""Takes what was measured to trackers, each in a thread of its own.

Promises: `log` takes no longer than putting a value into a list, whatever the trackers do. Each tracker has room for so
many values; when it is too slow the oldest are lost, and counted. One that fails several times in a row is dropped.
Each kind of trouble is said once. `close` waits for all of them together, and only so long.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from windrow.observe.trackers.config import TrackerConfig
from windrow.observe.trackers.kinds import begin, check_installed
from windrow.observe.trackers.protocol import Occasion, Setting, Tracker

log = logging.getLogger(__name__)

ROOM = 1000
"""Values that may wait for a tracker: some hours of steps."""
PATIENCE = 5
"""Failures in a row after which a tracker is dropped."""
CLOSE_S = 20.0
"""Enough for a tracker that works to send what is left."""

Entry = tuple[int, dict[str, float]]
Begin = Callable[[], Tracker]


class Trackers:
    """All trackers of a run, by name."""

    def __init__(
        self, begins: Mapping[str, Begin], room: int = ROOM, settings: Mapping[str, Setting] | None = None
    ) -> None:
        known = dict(settings or {})
        self._couriers = {name: Courier(name, begin_it, room, known) for name, begin_it in begins.items()}

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Hand these to every tracker."""
        values = {name: float(value) for name, value in metrics.items()}
        for courier in self._couriers.values():
            courier.put((step, values))

    def close(self, within_s: float = CLOSE_S) -> None:
        """Let every tracker finish, in so many seconds altogether; a second time does nothing."""
        until = time.monotonic() + within_s
        for courier in self._couriers.values():
            courier.end()
        for courier in self._couriers.values():
            courier.wait(until)

    @property
    def lost(self) -> dict[str, int]:
        """How many values each tracker did not get."""
        return {name: courier.lost for name, courier in self._couriers.items()}


def open_trackers(
    configs: Iterable[TrackerConfig], folder: Path, resumed_after: int | None = None, settings: object = None
) -> Trackers:
    """Those that are configured, for the run in this folder; ConfigError if the package of one is missing.

    `settings` is the effective configuration as plain values, which every tracker is told at its start.
    """
    occasion = Occasion(name=folder.absolute().name, folder=folder, resumed_after=resumed_after)
    begins: dict[str, Begin] = {}
    for config in configs:
        check_installed(config)
        name: str = config.kind
        begins[name if name not in begins else f"{name} {len(begins) + 1}"] = partial(begin, config, occasion)
    return Trackers(begins, settings=dict(_flat("", settings)))


def _flat(name: str, value: object) -> Iterator[tuple[str, Setting]]:
    """Every setting by its dotted name."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _flat(f"{name}.{key}" if name else str(key), below)
    elif name:
        yield name, value if isinstance(value, Setting) else str(value)


class Courier:
    """Takes values to one tracker."""

    def __init__(self, name: str, begin_it: Begin, room: int, settings: dict[str, Setting]) -> None:
        self.name = name
        self._settings = settings
        self.lost = 0  # values that were handed in and never reached it
        self._begin = begin_it
        self._room = room
        self._change = threading.Condition()  # guards all below and `lost`; never held while a tracker works
        self._waiting: deque[Entry] = deque()
        self._is_ending = False  # nothing more is handed in
        self._is_over = False  # nothing more is taken
        self._is_busy = False  # one value was taken and is neither there nor lost
        self._said: set[str] = set()  # all and only the words of the warnings that were given
        self._is_told = False  # how many were lost was said
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._thread.start()

    # in the thread of the run

    def put(self, entry: Entry) -> None:
        with self._change:
            if self._is_over or self._is_ending:
                self.lost += 1
                return
            is_late = len(self._waiting) >= self._room
            if is_late:
                self._waiting.popleft()
                self.lost += 1
            self._waiting.append(entry)
            self._change.notify()
        if is_late:
            self._warn("is too slow, values are lost; %d wait", self._room)

    def end(self) -> None:
        """Nothing more comes."""
        with self._change:
            self._is_ending = True
            self._change.notify()

    def wait(self, until: float) -> None:
        """For what is under way; after that it is given up."""
        self._thread.join(max(0.0, until - time.monotonic()))
        is_alive = self._thread.is_alive()
        if is_alive:
            self._give_up()
        if not self._is_told and (is_alive or self.lost):
            self._is_told = True
            how = "did not come to its end and" if is_alive else "has ended and"
            log.warning("tracker %s %s did not get %d values", self.name, how, self.lost)

    # in a thread of its own

    def _work(self) -> None:
        """Take values to the tracker.

        consumes      values that wait
        waits for     one more
        unblocked by  put, end, the run giving up
        """
        try:
            tracker = self._begin()
        except BaseException as error:  # noqa: BLE001 somebody else's code; an interrupt reaches the main thread alone
            self._give_up()
            log.warning("tracker %s cannot be started, the run goes on without it: %s", self.name, _said(error))
            return
        self._describe(tracker)
        failures = 0
        while failures < PATIENCE and (entry := self._next()) is not None:
            failures = 0 if self._delivered(tracker, entry) else failures + 1
        if failures >= PATIENCE:
            self._give_up()
            log.warning("tracker %s failed %d times in a row and is dropped", self.name, failures)
        self._close(tracker)

    def _describe(self, tracker: Tracker) -> None:
        """Tell it the settings; one that does not take them gets what is measured all the same."""
        if not self._settings:
            return
        try:
            tracker.describe(self._settings)
        except BaseException as error:  # noqa: BLE001 somebody else's code; an interrupt reaches the main thread alone
            self._warn("did not take the settings, the run goes on: %s", _said(error))

    def _next(self) -> Entry | None:
        with self._change:
            while not self._waiting and not self._is_ending and not self._is_over:
                self._change.wait()
            self._is_busy = bool(self._waiting)
            return self._waiting.popleft() if self._is_busy else None

    def _delivered(self, tracker: Tracker, entry: Entry) -> bool:
        step, values = entry
        try:
            tracker.log(step, dict(values))
        except BaseException as error:  # noqa: BLE001 somebody else's code; an interrupt reaches the main thread alone
            self._done(lost=1)
            self._warn("failed, the run goes on: %s", _said(error))
            return False
        self._done(lost=0)
        return True

    def _done(self, lost: int) -> None:
        with self._change:
            self.lost += lost if self._is_busy else 0  # what was given up is counted already
            self._is_busy = False

    def _close(self, tracker: Tracker) -> None:
        try:
            tracker.close()
        except BaseException as error:  # noqa: BLE001 somebody else's code; an interrupt reaches the main thread alone
            self._warn("failed when it was closed: %s", _said(error))

    # in either

    def _give_up(self) -> None:
        """Nothing more is taken; what waits is lost."""
        with self._change:
            self._is_over = True
            self.lost += len(self._waiting) + self._is_busy
            self._waiting.clear()
            self._is_busy = False
            self._change.notify()

    def _warn(self, words: str, detail: object) -> None:
        """Say each of these words once."""
        with self._change:
            is_new = words not in self._said
            self._said.add(words)
        if is_new:
            log.warning(f"tracker %s {words}", self.name, detail)  # noqa: G004 -- the words are ours, above


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
