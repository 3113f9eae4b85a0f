"""Behaviour cloning: a policy learns to say what somebody else said.

Promises: only tokens that were sampled are learnt, never what an environment said. Every step draws its demonstrations
without repeating one before all others had their turn; which come when follows from the seed and the number of steps
taken before, so training that goes on from a checkpoint sees what it would have seen.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from windrow.errors import DataError
from windrow.requests import Tokens
from windrow.train.config import DemonstrationConfig
from windrow.train.learner import Learner
from windrow.train.rows import Piece, Rows
from windrow.train.threads import use_threads
from windrow.trajectory import Trajectory
from windrow.types import Value

OnStep = Callable[[int, dict[str, float]], None]
"""Is told the number of steps that were taken, and what the last one said."""


class Demonstration(Value, frozen=True):
    """A text, and which of its tokens are to be learnt."""

    token_ids: Tokens
    learn: "np.ndarray[tuple[int], np.dtype[np.bool_]]"


def demonstrations(trajectories: Iterable[Trajectory]) -> list[Demonstration]:
    """One per chain of each trajectory: what the policy said in it is learnt."""
    found = []
    for trajectory in trajectories:
        for chain in trajectory.chains:
            lengths = [segment.length for segment in chain.segments]
            said = np.repeat([segment.author == "policy" for segment in chain.segments], lengths)
            found.append(Demonstration(chain.token_ids, said.astype(np.bool_)))
    return found


def supervise(
    learner: Learner,
    rows: Sequence[Demonstration],
    config: DemonstrationConfig,
    seed: int = 0,
    on_step: OnStep | None = None,
) -> dict[str, float]:
    """Take steps until `config.steps` were taken; the loss is the mean over tokens. What the last step said."""
    use_threads(config.threads)
    table = _table(rows, learner.device)
    order = _Order(len(table), config.batch_size, seed)
    last: dict[str, float] = {}
    while learner.steps < config.steps:
        last = clone(learner, table.take(order.at(learner.steps)))
        if on_step is not None:
            on_step(learner.steps, last)
    return last


def clone(learner: Learner, rows: Rows) -> dict[str, float]:
    """One step towards saying exactly this."""
    tokens = rows.tokens()
    right = torch.zeros((), device=learner.device)

    def loss(piece: Piece) -> Tensor:
        said = learner.network(piece.asked, 1.0)
        right.add_(said.logprobs.detach().exp().sum())
        return -said.logprobs.sum() / tokens  # type: ignore[no-any-return]  # a module returns anything

    found = learner.step(rows, loss)
    probability = float(learner.peers.total(right)) / tokens if tokens else 0.0
    return {name.replace("train/", "supervised/"): value for name, value in found.items()} | {
        "supervised/probability": probability
    }


class _Order:
    """Which demonstrations come in which step."""

    def __init__(self, rows: int, batch_size: int, seed: int) -> None:
        self._rows, self._size, self._seed = rows, min(batch_size, rows), seed

    def at(self, step: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
        begin = step * self._size
        places = np.arange(begin, begin + self._size)
        rounds = places // self._rows
        orders = {number: self._shuffled(int(number)) for number in np.unique(rounds)}
        return np.array([orders[number][place] for number, place in zip(rounds, places % self._rows, strict=True)])

    def _shuffled(self, number: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
        return np.random.default_rng([self._seed, number]).permutation(self._rows)


def _table(given: Sequence[Demonstration], device: torch.device) -> Rows:
    """All demonstrations from which something can be learnt, padded once."""
    rows = [row for row in given if row.learn[1:].any()]  # nothing predicts a first token
    if not rows:
        raise DataError(f"none of {len(given)} demonstrations has a token to learn; give recordings of played episodes")
    width = max(len(row.token_ids) for row in rows)
    ids = np.zeros((len(rows), width), np.int64)
    learn = np.zeros((len(rows), width), np.bool_)
    for number, row in enumerate(rows):
        ids[number, : len(row.token_ids)] = row.token_ids
        learn[number, : len(row.learn)] = row.learn
    return Rows.made(torch.from_numpy(ids).to(device), torch.from_numpy(learn).to(device), {})
