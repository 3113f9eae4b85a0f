"""Modelled engines: requests that run at once share an engine evenly, and each is slower the more there are.

Promises: a request's remaining work counts in tokens; reading (prefill) is counted as the tokens that could
have been generated in the same time. All running requests advance alike, so one number per engine, the work
that each of them has received, is enough: starting and finishing a request costs O(log n), and at most one
valid wake-up per engine is planned. A suspended engine keeps its requests and goes on when it is resumed;
after a weight change it reads again what they have so far. No token is lost by suspending, moving or dying.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import inf
from typing import Self

from windrow.sim.clock import Clock
from windrow.sim.config import Engines
from windrow.types import AttemptId, How, Record, Value

DONE_TOKENS = 1e-4
"""A request with less left is done; covers what rounding leaves behind."""
PROMPTS_KEPT = 32
"""Groups whose prompt an engine remembers."""


class Pace(Value, frozen=True):
    """How fast an engine is."""

    alone_s: float
    """Seconds per token of a request that is alone."""
    neighbour_s: float
    """What each other request adds to that."""
    read_cost: float
    """Tokens that could be generated while one is read."""

    @classmethod
    def of(cls, engines: Engines) -> Self:
        """The pace that a config describes."""
        return cls(
            alone_s=1.0 / engines.base_tokens_per_s,
            neighbour_s=1.0 / engines.peak_tokens_per_s,
            read_cost=engines.base_tokens_per_s / engines.prefill_tokens_per_s,
        )

    def token_s(self, running: float) -> float:
        """Seconds per token of each of so many requests."""
        return self.alone_s + (running - 1.0) * self.neighbour_s


class Request(Record):
    """One response that an engine is asked for."""

    attempt: AttemptId
    tokens: float
    """Still to be generated, when it was last looked at."""
    read: float
    """Tokens to be read first."""
    context: float
    """Tokens before the response."""
    version: int = -1
    """Version under which it began to run; -1 if it has not."""
    finish: float = 0.0
    """The engine's work at which it is done."""
    is_running: bool = False


class Engine:
    """One modelled engine; without a pace it answers at once."""

    def __init__(
        self, name: str, pace: Pace | None, capacity: int, clock: Clock, answer: Callable[[Request], None]
    ) -> None:
        self.name = name
        self.pace = pace
        self.capacity = capacity
        self.version = 0
        self.memory = 0  # changes whenever it forgets what it has read
        self.prompts: dict[int, None] = {}  # groups whose prompt it knows, oldest first
        self.is_open = True  # new requests run
        self.is_moving = True  # running requests advance
        self.is_alive = True
        self.running = 0
        self.busy_s = 0.0  # integral of min(running, capacity) over the time in which it moves
        self.active_s = 0.0  # seconds in which anything ran
        self._clock = clock
        self._answer = answer
        self._held: list[Request] = []  # all and only the requests that wait for it to open
        self._queue: list[tuple[float, int, Request]] = []  # running requests by finish; withdrawn ones are skipped
        self._work = 0.0  # tokens that a request would have received that has run since the beginning
        self._looked_at = clock.now  # when `_work` and `busy_s` were brought up to date
        self._wake_at = inf  # the planned wake-up that counts
        self._started = 0  # requests so far; breaks ties

    def start(self, request: Request) -> None:
        """Run a request, or hold it until the engine opens."""
        if not self.is_open:
            self._held.append(request)
            return
        request.is_running = True
        request.version = self.version
        if self.pace is None:
            self._clock.after(0.0, self._answer_at_once, request)
            return
        self.look()
        self.running += 1
        self._started += 1
        request.finish = self._work + request.tokens + self.pace.read_cost * request.read
        heappush(self._queue, (request.finish, self._started, request))
        self._plan(self.pace)

    def withdraw(self, request: Request) -> None:
        """Take a request back; its `tokens` are then what is left of it."""
        if not request.is_running:
            if request in self._held:
                self._held.remove(request)
            return
        request.is_running = False
        if self.pace is not None:
            self.look()
            self.running -= 1
            request.tokens = min(request.tokens, max(0.0, request.finish - self._work))

    def suspend(self, how: How) -> None:
        """Hold new requests, and stop the running ones unless they may drain."""
        self.look()
        self.is_open = False
        self.is_moving = self.is_moving and how == "drain"

    def resume(self) -> None:
        """Go on, and run what was held."""
        if not self.is_alive:
            return
        self.look()
        self.is_open = self.is_moving = True
        held, self._held = self._held, []
        for request in held:
            self.start(request)
        if self.pace is not None:
            self._plan(self.pace)

    def die(self) -> None:
        """Stop for ever; whoever waits for an answer withdraws."""
        self.suspend("interrupt")
        self.is_alive = False

    def load(self, version: int) -> None:
        """Take new weights, forget what was read, and read again what is still running."""
        self.version = version
        self.memory += 1
        self.prompts.clear()
        if self.pace is None or not self.running:
            return
        self.look()
        self._queue = [entry for entry in self._queue if entry[2].is_running]
        for place, (_, order, request) in enumerate(self._queue):
            left = min(request.tokens, request.finish - self._work)
            request.context += request.tokens - left
            request.tokens = left
            request.finish = self._work + left + self.pace.read_cost * request.context
            self._queue[place] = (request.finish, order, request)
        heapify(self._queue)
        self._plan(self.pace)

    def remember_prompt(self, group: int) -> bool:
        """Read a group's prompt; true if it was known."""
        if group in self.prompts:
            return True
        if len(self.prompts) >= PROMPTS_KEPT:
            del self.prompts[next(iter(self.prompts))]
        self.prompts[group] = None
        return False

    def look(self) -> None:
        """Bring the work done up to now."""
        now = self._clock.now
        passed = now - self._looked_at
        self._looked_at = now
        if passed > 0.0 and self.running and self.is_moving and self.pace is not None:
            self._work += passed / self.pace.token_s(self.running)
            self.busy_s += passed * (min(self.capacity, self.running))
            self.active_s += passed

    def _answer_at_once(self, request: Request) -> None:
        if request.is_running:
            request.is_running = False
            self._answer(request)

    def _plan(self, pace: Pace) -> None:
        """Plan the next wake-up, unless an earlier one is planned; that one will plan again."""
        queue = self._queue
        while queue and not queue[0][2].is_running:
            heappop(queue)
        if not queue or not self.is_moving:
            return
        left = queue[0][0] - self._work
        due = self._clock.now + left * pace.token_s(self.running) if left > 0.0 else self._clock.now
        if due < self._wake_at:
            self._wake_at = due
            self._clock.at(due, self._wake, due)

    def _wake(self, due: float) -> None:
        """Answer what is done."""
        if due != self._wake_at or self.pace is None:
            return
        self._wake_at = inf
        self.look()
        queue = self._queue
        done = self._work + DONE_TOKENS
        while queue and self.is_moving and queue[0][0] <= done:
            _, _, request = heappop(queue)
            if request.is_running:
                request.is_running = False
                self.running -= 1
                self._answer(request)
        self._plan(self.pace)
