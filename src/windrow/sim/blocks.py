"""Drawn attempts, a block of tasks at a time.

Promises: a block is the same whenever it is drawn. The blocks drawn last are kept, so that memory stays flat
however long a run is.
"""

from typing import Literal, assert_never

import numpy as np

from windrow.sim.config import DurationEpisodes, SimConfig, Surroundings, TraceEpisodes, TurnEpisodes
from windrow.sim.distributions import Constant, Distribution, Numbers
from windrow.sim.draws import LANES, POOL, TASKS, Draws, Tasks
from windrow.sim.trace import Trace
from windrow.types import Record

BLOCKS_KEPT = 128
"""Enough for 30,000 groups of 8 at once; the block drawn first is dropped first."""

Fate = Literal["ok", "crash", "hang"]

FATES: tuple[Fate, Fate, Fate] = ("ok", "crash", "hang")


class Lengths(Record):
    """How long the attempts of a block are."""

    seconds: Numbers
    turns: Numbers
    scale: Numbers


class Block(Record):
    """The attempts of some tasks, task after task, a column for each thing drawn; see `EpisodePlan`."""

    seconds: list[float]
    turns: list[int]
    scale: list[float]
    first: list[int]
    prompt_tokens: list[int]
    """One per task."""
    start_s: list[float]
    reward_s: list[float]
    fate: list[Fate]
    fate_at: list[float]
    score: list[float]


class Blocks:
    """All attempts of one mode; tasks come again after `epoch` of them, if that is not 0."""

    def __init__(self, config: SimConfig, draws: Draws, trace: Trace, epoch: int) -> None:
        self.config = config
        self.draws = draws
        self.trace = trace
        self.epoch = epoch
        self.kept: dict[tuple[int, int], Block] = {}  # the blocks drawn last, oldest first

    def find(self, number: int, lane: int) -> Block:
        """The block of some tasks and some of their attempts."""
        block = self.kept.get((number, lane))
        if block is None:
            block = self.kept[number, lane] = self._draw(number, lane)
            if len(self.kept) > BLOCKS_KEPT:
                del self.kept[next(iter(self.kept))]
        return block

    def _draw(self, number: int, lane: int) -> Block:
        ordinals = np.arange(number * TASKS, (number + 1) * TASKS)
        tasks = ordinals % self.epoch if self.epoch else ordinals
        lengths = self._lengths(tasks, number, lane)
        episode = self.config.episode
        around = episode if isinstance(episode, Surroundings) else Surroundings()
        first = POOL * self.draws.of_attempts("uniform", "first", number, lane)
        prompts = around.prompt_tokens.shape(self.draws.of_tasks("normal", "prompt", tasks))
        return Block(
            seconds=lengths.seconds.tolist(),
            turns=lengths.turns.astype(np.int64).tolist(),
            scale=lengths.scale.tolist(),
            first=first.astype(np.int64).tolist(),
            prompt_tokens=prompts.astype(np.int64).tolist(),
            start_s=self._times(around.start_s, "start", number, lane),
            reward_s=self._times(self.config.reward.time_s, "reward", number, lane),
            fate=self._fates(tasks, number, lane),
            fate_at=self.draws.of_attempts("uniform", "fate at", number, lane).tolist(),
            score=self._scores(tasks, number, lane),
        )

    def _lengths(self, tasks: Tasks, number: int, lane: int) -> Lengths:
        episode = self.config.episode
        if isinstance(episode, TraceEpisodes):
            return self._recorded(tasks, number, lane)
        of_task = np.repeat(self.draws.of_tasks("normal", "task", tasks), LANES)
        own = self.draws.of_attempts("normal", "own", number, lane)
        none, one = np.zeros_like(own), np.ones_like(own)
        match episode:
            case DurationEpisodes():
                cap_s = np.inf if episode.cap_s is None else episode.cap_s
                seconds = np.minimum(episode.task.shape(of_task) * episode.own.shape(own), cap_s)
                return Lengths(seconds, none, one)
            case TurnEpisodes():
                share = episode.task_share
                turns = episode.turns.shape(np.sqrt(share) * of_task + np.sqrt(1.0 - share) * own)
                return Lengths(none, np.clip(np.rint(turns), 1, episode.max_turns), one)
            case _:
                assert_never(episode)

    def _recorded(self, tasks: Tasks, number: int, lane: int) -> Lengths:
        """Each attempt takes the next of its task's episodes, from a place that the ordinal decides."""
        offsets = self.draws.numbers("uniform", "offset", (number,), TASKS)
        rows = []
        for task, offset in zip(tasks.tolist(), offsets.tolist(), strict=True):
            episodes = self.trace[task % len(self.trace)]
            begin = int(offset * len(episodes)) + lane * LANES
            rows += [episodes[(begin + column) % len(episodes)] for column in range(LANES)]
        return Lengths(
            np.array([row.seconds for row in rows]),
            np.array([float(row.turns) for row in rows]),
            np.array([row.tokens / max(1, row.turns) for row in rows]),
        )

    def _times(self, shape: Distribution, what: str, number: int, lane: int) -> list[float]:
        if isinstance(shape, Constant):
            return [shape.value] * (TASKS * LANES)
        times: list[float] = shape.shape(self.draws.of_attempts("normal", what, number, lane)).tolist()
        return times

    def _fates(self, tasks: Tasks, number: int, lane: int) -> list[Fate]:
        """What becomes of each attempt; all attempts at a poisonous task crash."""
        faults = self.config.faults
        chance = self.draws.of_attempts("uniform", "fate", number, lane)
        poisoned = self.draws.of_tasks("uniform", "poison", tasks) < faults.poisonous_share
        crash = (chance < faults.crash_share) | np.repeat(poisoned, LANES)
        hang = (chance < faults.crash_share + faults.hang_share) & ~crash
        return [FATES[fate] for fate in (crash + 2 * hang).tolist()]

    def _scores(self, tasks: Tasks, number: int, lane: int) -> list[float]:
        """Solved or not; each task has its own chance of being solved."""
        ease = np.repeat(self.draws.of_tasks("uniform", "ease", tasks), LANES)
        solved = self.draws.of_attempts("uniform", "score", number, lane) < ease
        return [float(score) for score in solved.tolist()]
