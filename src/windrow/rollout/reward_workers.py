"""A reward worker in this process: it fetches played episodes, scores many at once, and reports their scores.

Promises: scoring takes no slot of any environment; never more than `at_once` at a time; every try has a deadline; what
fails is tried again as its class says, and then it is news about that attempt, never a score. A score that nobody wants
any more is broken off. What a reward does beside (a thread that never returns) is left behind and said.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from numbers import Real
from typing import Protocol

from windrow.envs.protocol import DEADLINE
from windrow.errors import JudgeError, RewardError, SandboxError, blame
from windrow.rewards.protocol import Closable, GroupReward, Score
from windrow.rollout.env_config import AnyReward, RewardLimits
from windrow.rollout.episodes import LARGEST
from windrow.rollout.orders import Broken, News
from windrow.rollout.reward_places import Ask, way_to
from windrow.rollout.supervision import is_stray
from windrow.rollout.trays import Forget, Job
from windrow.rollout.workers import Sighting, played
from windrow.trajectory import Trajectory
from windrow.types import AttemptId, Failed, but

log = logging.getLogger(__name__)

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
        self._tasks: dict[AttemptId, asyncio.Task[None]] = {}  # all and only the attempts that are being scored
        self._since: dict[AttemptId, float] = {}  # the same attempts

    def sightings(self) -> list[Sighting]:
        """What is being scored, or waits for a place to be."""
        return [
            Sighting(attempt=str(attempt), worker=self.name, engine="", stage="scoring", since=since, turn=0, tokens=0)
            for attempt, since in self._since.items()
        ]

    async def run(self) -> None:
        """Score until the queue is over.

        consumes      played episodes
        waits for     the queue to have some
        unblocked by  the end of an episode, CancelAttempt, the queue's end
        """
        async with AsyncExitStack() as stack:
            with blame(RewardError, f"reward of {self.kind}", "could not be made"):
                reward = self._make()
            if self._closes and isinstance(reward, Closable):
                stack.push_async_callback(self._close, reward)
            ask = way_to(reward, self._limits.isolation, self.kind, stack)
            in_groups = isinstance(reward, GroupReward)
            await self._queue.open_tray(self.kind, in_groups=in_groups)
            async with asyncio.TaskGroup() as group:
                while orders := await self._queue.fetch_unscored(self.kind):
                    for order in orders:
                        self._obey(order, ask, group, in_groups=in_groups)
                for task in {*self._tasks.values()}:
                    task.cancel()

    def _obey(self, order: Job | Forget, ask: Ask, group: asyncio.TaskGroup, *, in_groups: bool) -> None:
        match order:
            case Forget(attempt=attempt):
                task = self._tasks.get(attempt)
                if task is not None:
                    task.cancel()
            case Job(trajectories=trajectories):
                attempts = [trajectory.attempt for trajectory in trajectories]
                scoring = group.create_task(
                    self._score(trajectories, ask, in_groups=in_groups), name=f"score of {attempts[0]}"
                )
                for attempt in attempts:
                    self._tasks[attempt] = scoring
                    self._since[attempt] = self._clock()
                scoring.add_done_callback(partial(self._forget, attempts))

    def _forget(self, attempts: list[AttemptId], task: "asyncio.Task[None]") -> None:
        for attempt in attempts:
            if self._tasks.get(attempt) is task:  # not given out again meanwhile
                del self._tasks[attempt], self._since[attempt]

    async def _score(self, trajectories: tuple[Trajectory, ...], ask: Ask, *, in_groups: bool) -> None:
        news: list[News]
        async with self._places:
            began = self._clock()
            try:
                scores = await self._persist(trajectories, ask, in_groups=in_groups)
            except RewardError as error:
                news = [Broken(t.attempt, Failed("reward", str(error), t.policy_tokens)) for t in trajectories]
            else:
                ended = self._clock()
                pairs = zip(trajectories, scores, strict=True)
                news = [played(_scored(trajectory, score, began, ended)) for trajectory, score in pairs]
        await self._queue.report(news)

    async def _persist(self, trajectories: tuple[Trajectory, ...], ask: Ask, *, in_groups: bool) -> list[Score]:
        """Try, and try again if that may help."""
        for attempt in range(self._limits.retries + 1):
            try:
                return await self._try(trajectories, ask, in_groups=in_groups)
            except RewardError as error:
                if attempt == self._limits.retries or not _may_pass(error, self._limits.retry):
                    raise
                log.info("score is tried again: %s", error, extra={"attempt": str(trajectories[0].attempt)})
                await asyncio.sleep(self._limits.retry_after_s * 2**attempt)
        raise AssertionError("the last try returns or raises")

    async def _try(self, trajectories: tuple[Trajectory, ...], ask: Ask, *, in_groups: bool) -> list[Score]:
        first = trajectories[0].attempt
        who = f"g{first.group}" if in_groups else str(first)
        due = self._clock() + self._limits.timeout_s
        context = DEADLINE.set(due)
        try:
            with blame(RewardError, f"reward of {who}"):
                async with asyncio.timeout_at(due):
                    said = await _kept_inside(ask, in_groups, trajectories, who)
        finally:
            DEADLINE.reset(context)
        if not in_groups:
            return [_checked(said, who)]
        if not isinstance(said, Sequence) or len(said) != len(trajectories):
            raise RewardError(
                f"reward of {who} gave {said!r:.60} for {len(trajectories)} episodes; give one score each"
            )
        return [_checked(each, who) for each in said]

    async def _close(self, reward: Closable) -> None:
        try:
            with blame(RewardError, f"reward of {self.kind}", "close"):
                async with asyncio.timeout(CLOSE_S):
                    await reward.close()
        except RewardError as error:
            log.warning("reward did not close: %s", error, extra={"kind": self.kind})


async def _kept_inside(ask: Ask, in_groups: bool, trajectories: tuple[Trajectory, ...], who: str) -> object:  # noqa: FBT001 -- one call
    """Ask; neither a cancellation that leaks out of a reward nor an exit ends more than this try."""
    try:
        return await (ask("score_group", [*trajectories]) if in_groups else ask("score", trajectories[0]))
    except asyncio.CancelledError:
        if is_stray():
            raise RewardError(f"reward of {who} was cancelled from inside") from None
        raise
    except SystemExit as error:
        raise RewardError(f"reward of {who} called sys.exit({error.code!r})") from None


def _checked(said: object, who: str) -> Score:
    score = said if isinstance(said, Score) else Score(said) if _is_number(said) else None  # type: ignore[arg-type]  # it is a number
    if score is None:
        raise RewardError(f"reward of {who} is {said!r:.60}; return a finite number or a Score")
    for name, number in {"its value": score.value, **score.parts}.items():
        if not _is_number(number):
            raise RewardError(f"reward of {who}: {name} is {number!r:.60}; it must be a finite number")
    return score


def _is_number(said: object) -> bool:
    return isinstance(said, Real) and bool(-LARGEST <= said <= LARGEST)  # type: ignore[operator]  # it is a number


def _may_pass(error: RewardError, retry: str) -> bool:
    """A failure that need not happen again."""
    if retry == "always":
        return True
    passing = isinstance(error, JudgeError | SandboxError) or isinstance(error.__cause__, TimeoutError | OSError)
    return retry == "transient" and passing


def _scored(trajectory: Trajectory, score: Score, began: float, ended: float) -> Trajectory:
    """A trajectory with its score; what the environment has not given itself is credited to the last turn."""
    value = float(score.value)
    last = trajectory.turns[-1]
    rest = value - sum(turn.reward for turn in trajectory.turns)
    return but(
        trajectory,
        turns=(*trajectory.turns[:-1], but(last, reward=last.reward + rest)),
        score=value,
        scores={**trajectory.scores, **{name: float(part) for name, part in score.parts.items()}},
        info={**trajectory.info, "reward_note": score.note} if score.note else trajectory.info,
        reward_began_at=began,
        reward_ended_at=ended,
    )
