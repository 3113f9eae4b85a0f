"""A reward worker in this process: it fetches played episodes, scores many at once, and reports their scores.

Promises: scoring takes no slot of any environment; never more than `at_once` at a time; every try has a deadline; what
fails is tried again as its class says, and then it is news about that attempt, never a score. A score that nobody wants
any more is broken off. What a reward does beside (a thread that never returns) is left behind and said.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Protocol

from windrow.envs.protocol import DEADLINE
from windrow.errors import InternalError, JudgeError, RewardError, SandboxError, WindrowError, blame, trace_of
from windrow.isolation.host import Elsewhere
from windrow.rewards.places import Ask, way_to
from windrow.rewards.protocol import AnyReward, Closable, GroupReward, Score
from windrow.rollout.env_config import RewardLimits
from windrow.rollout.orders import News, Scored, Unscorable
from windrow.rollout.scores import read_score, read_scores, scored
from windrow.rollout.supervision import contained
from windrow.rollout.trays import Forget, Job
from windrow.rollout.workers import Sighting

log = logging.getLogger(__name__)

PASSING = (TimeoutError, OSError, JudgeError, SandboxError)
"""Failures of services and deadlines: the next try may succeed."""
PASSING_NAMES = frozenset(kind.__name__ for kind in PASSING)

CLOSE_S = 5.0
"""How long a reward may take to close."""


class Queue(Protocol):
    """What a reward worker needs of the queue."""

    async def open_tray(self, kind: str, *, in_groups: bool) -> None: ...

    async def fetch_unscored(self, kind: str) -> Sequence[Job | Forget]: ...

    async def report(self, news: Sequence[News]) -> None: ...


class RewardWorker:
    """Scores the episodes of one kind."""

    def __init__(
        self,
        name: str,
        kind: str,
        queue: Queue,
        make: Callable[[], AnyReward],
        limits: RewardLimits,
        *,
        closes: bool,
    ) -> None:
        self.name = name
        self.kind = kind
        self._queue = queue
        self._make = make
        self._limits = limits
        self._closes = closes
        self._clock = asyncio.get_running_loop().time
        self._places = asyncio.Semaphore(limits.at_once)
        self._tasks: dict[int, asyncio.Task[None]] = {}  # all and only the jobs that are under way, by number
        self._since: dict[int, tuple[Job, float]] = {}  # the same jobs
        self._called_off: set[int] = set()  # those of them that nobody waits for
        self._is_dismissed = False
        self._is_ending = False
        self.ended = asyncio.Event()
        """It is over, and whatever it held is given back."""

    def sightings(self) -> list[Sighting]:
        """What is being scored, or waits for a place to be."""
        return [
            Sighting(
                attempt=str(trajectory.attempt),
                worker=self.name,
                engine="",
                stage="scoring",
                since=since,
                turn=len(trajectory.turns),
                tokens=trajectory.policy_tokens,
            )
            for job, since in self._since.values()
            for trajectory in job.trajectories
        ]

    async def look(self) -> None:
        """What is in play is always known here."""

    async def run(self) -> None:
        """Score until the queue is over.

        consumes      played episodes
        waits for     the queue to have some
        unblocked by  the end of an episode, CancelAttempt, the queue's end
        """
        try:
            if not self._is_dismissed:
                await self._work()
        finally:
            self.ended.set()

    async def _work(self) -> None:
        async with AsyncExitStack() as stack:
            with blame(RewardError, f"reward of {self.kind}", "could not be made"):
                reward = self._make()
            if self._closes and isinstance(reward, Closable):
                stack.push_async_callback(self._close, reward)
            ask = way_to(reward, self._limits.isolation, f"reward of {self.kind}", stack)
            in_groups = isinstance(reward, GroupReward)
            await self._queue.open_tray(self.kind, in_groups=in_groups)
            async with asyncio.TaskGroup() as group:
                try:
                    while self._obey(await self._queue.fetch_unscored(self.kind), ask, group, in_groups=in_groups):
                        pass
                finally:
                    self._is_ending = True
                for number in self._tasks:
                    self._call_off(number)

    def dismiss(self) -> None:
        """Its scheduler is gone: if it has not begun it need not."""
        self._is_dismissed = True

    def _obey(self, orders: Sequence[Job | Forget], ask: Ask, group: asyncio.TaskGroup, *, in_groups: bool) -> bool:
        """Do what the queue wants; false if that is nothing more."""
        for order in orders:
            match order:
                case Forget(job=number):
                    self._call_off(number)
                case Job(number=number):
                    scoring = group.create_task(self._score(order, ask, in_groups=in_groups), name=f"score {number}")
                    self._tasks[number] = scoring
                    self._since[number] = order, self._clock()
                    scoring.add_done_callback(partial(self._forget, number, group))
        return bool(orders)

    def _call_off(self, number: int) -> None:
        task = self._tasks.get(number)
        if task is not None and number not in self._called_off:
            self._called_off.add(number)
            task.cancel()

    def _forget(self, number: int, group: asyncio.TaskGroup, task: "asyncio.Task[None]") -> None:
        del self._tasks[number], self._since[number]
        if task.cancelled() and number not in self._called_off and not self._is_ending:
            news = Unscorable(number, f"the task of a {self.name} was cancelled by somebody who may not")
            group.create_task(self._queue.report([news]), name=f"news of score {number}")
        self._called_off.discard(number)

    async def _score(self, job: Job, ask: Ask, *, in_groups: bool) -> None:
        try:
            async with self._places:
                began = self._clock()
                scores = await self._persist(job, ask, in_groups=in_groups)
                with blame(RewardError, f"reward of {_who(job, in_groups=in_groups)}"):
                    pairs = zip(job.trajectories, scores, strict=True)
                    done = tuple(scored(one, score, began, self._clock()) for one, score in pairs)
            news: News = Scored(job.number, done)
        except RewardError as error:
            news = Unscorable(job.number, str(error), trace_of(error))
        await self._queue.report([news])

    async def _persist(self, job: Job, ask: Ask, *, in_groups: bool) -> list[Score]:
        """Try, and try again if that may help."""
        for attempt in range(self._limits.retries + 1):
            try:
                return await self._try(job, ask, in_groups=in_groups)
            except RewardError as error:
                if job.number in self._called_off:
                    raise asyncio.CancelledError from error  # it made something else of its cancellation
                if attempt == self._limits.retries or not _may_pass(error, self._limits.retry):
                    raise
                log.info("score is tried again: %s", error, extra={"attempt": str(job.trajectories[0].attempt)})
                await asyncio.sleep(self._limits.retry_after_s * 2**attempt)
        raise AssertionError("the last try returns or raises")

    async def _try(self, job: Job, ask: Ask, *, in_groups: bool) -> list[Score]:
        who = _who(job, in_groups=in_groups)
        call = (
            partial(ask, "score_group", [*job.trajectories])
            if in_groups
            else partial(ask, "score", job.trajectories[0])
        )
        due = self._clock() + self._limits.timeout_s
        context = DEADLINE.set(due)
        try:
            with blame(RewardError, f"reward of {who}"):
                async with asyncio.timeout_at(due):
                    said = await _alone(call, f"reward of {who}")
                if self._clock() > due:
                    raise TimeoutError("it took too long")
                return read_scores(said, who, len(job.trajectories)) if in_groups else [read_score(said, who)]
        finally:
            DEADLINE.reset(context)

    async def _close(self, reward: Closable) -> None:
        try:
            with blame(RewardError, f"reward of {self.kind}", "close"):
                async with asyncio.timeout(CLOSE_S):
                    await contained(RewardError, (f"reward of {self.kind} close",), reward.close)
        except RewardError as error:
            log.warning("reward did not close: %s", error, extra={"kind": self.kind})


async def _alone(call: Callable[[], Awaitable[object]], who: str) -> object:
    """Ask in a task of its own; whatever comes out of a reward, it ends no more than this try."""
    asking: asyncio.Task[object] | None = None
    try:
        async with asyncio.TaskGroup() as own:
            asking = own.create_task(contained(RewardError, (who,), call), name=who)
    except BaseExceptionGroup:
        pass  # it has its own
    assert asking is not None
    if asking.cancelled():
        raise RewardError(f"{who} cancelled its own task")
    failure = asking.exception()
    if isinstance(failure, WindrowError) and not isinstance(failure, RewardError | InternalError):
        raise RewardError(f"{who}: {failure}") from failure
    return asking.result()


def _who(job: Job, *, in_groups: bool) -> str:
    first = job.trajectories[0].attempt
    return f"g{first.group}" if in_groups else str(first)


def _may_pass(error: RewardError, retry: str) -> bool:
    """A failure that need not happen again."""
    if retry == "always":
        return True
    cause = error.__cause__
    elsewhere = isinstance(cause, Elsewhere) and not PASSING_NAMES.isdisjoint(cause.kinds)
    return retry == "transient" and (elsewhere or isinstance(error, PASSING) or isinstance(cause, PASSING))
