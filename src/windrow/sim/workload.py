"""The workload: what every attempt would be like if it were played to its end.

Promises: a plan depends on the config (its `machine` aside), the seed, the mode, the task's ordinal, the seat
and the attempt's index alone, so every scheduler plays the same workload. Whoever tries a seat again meets
the same length and score and another fate. Any seat and index work: spares and retries have theirs.
"""

from bisect import bisect
from itertools import accumulate
from pathlib import Path

import numpy as np

from windrow.sim.blocks import Blocks, Fate
from windrow.sim.config import SimConfig, Surroundings, TraceEpisodes, TurnEpisodes
from windrow.sim.distributions import ONE
from windrow.sim.draws import LANES, TASKS, Draws, Pool
from windrow.sim.trace import Trace, read_trace
from windrow.types import Mode, Value


class EpisodePlan(Value, frozen=True):
    """One attempt, as it was drawn."""

    length: float
    """Seconds, or tokens if it has turns: what length bias is measured in."""
    seconds: float
    """Its time, if it has no turns."""
    turns: int
    """0 if it is one stretch of time."""
    scale: float
    """What the tokens of each turn are multiplied by."""
    first: int
    """Where in the pools its turns begin."""
    prompt_tokens: int
    start_s: float
    reward_s: float
    score: float
    fate: Fate
    fate_at: float
    """How far it gets before its fate, as a share of the whole."""


class Workload:
    """All plans of one mode."""

    def __init__(self, config: SimConfig, seed: int, mode: Mode = "train") -> None:
        episode = config.episode
        trace: Trace = read_trace(Path(episode.path)) if isinstance(episode, TraceEpisodes) else []
        around = episode if isinstance(episode, Surroundings) else Surroundings()
        self.config = config
        self.draws = Draws(seed, mode)
        self.epoch = _epoch(config, mode, len(trace))
        self.blocks = Blocks(config, self.draws, trace, self.epoch)
        self.tokens = Pool(self.draws, "tokens", episode.tokens_per_turn if isinstance(episode, TurnEpisodes) else ONE)
        self.observations = Pool(self.draws, "observation", around.observation_tokens)
        self.steps = Pool(self.draws, "step", around.step_s)

    def plan(self, ordinal: int, seat: int, index: int | None = None) -> EpisodePlan:
        """The attempt of an index at a seat; without an index, the first one."""
        number, row = divmod(ordinal, TASKS)
        lane, column = divmod(seat, LANES)
        block = self.blocks.find(number, lane)
        at = row * LANES + column
        seconds, turns, scale, first = block.seconds[at], block.turns[at], block.scale[at], block.first[at]
        fate, fate_at = block.fate[at], block.fate_at[at]
        if index is not None and index != seat:
            fate, fate_at = self._fate(ordinal, index)
        return EpisodePlan(
            scale * self.tokens.total(first, turns) if turns else seconds,
            seconds,
            turns,
            scale,
            first,
            block.prompt_tokens[row],
            block.start_s[at],
            block.reward_s[at],
            block.score[at],
            fate,
            fate_at,
        )

    def task_name(self, ordinal: int) -> str:
        """A name that stays the same when the task comes again; empty if it never does."""
        return f"t{ordinal % self.epoch}" if self.epoch else ""

    def kind(self, ordinal: int) -> str:
        """The kind of environment of a task."""
        kinds = self.config.source.kinds
        if not kinds:
            return ""
        chance = self._chance("kind", ordinal % self.epoch if self.epoch else ordinal)
        place = bisect(list(accumulate(kinds.values())), chance * sum(kinds.values()))
        return list(kinds)[min(place, len(kinds) - 1)]

    def is_accepted(self, ordinal: int) -> bool:
        """Whether the user's filter accepts the group of a task."""
        return self._chance("verdict", ordinal) < self.config.reward.accepted_share

    def _fate(self, ordinal: int, index: int) -> tuple[Fate, float]:
        number, row = divmod(ordinal, TASKS)
        lane, column = divmod(index, LANES)
        block = self.blocks.find(number, lane)
        return block.fate[row * LANES + column], block.fate_at[row * LANES + column]

    def _chance(self, what: str, ordinal: int) -> float:
        return float(self.draws.of_tasks("uniform", what, np.array([ordinal]))[0])


def _epoch(config: SimConfig, mode: Mode, recorded: int) -> int:
    """Tasks after which the first comes again; 0 if it never does."""
    if mode == "val":
        return config.validation.tasks if config.validation else 0
    return config.source.epoch_tasks or recorded
