"""How fast ragged trajectories become a padded batch.

Timed are whole calls of `make_batch`, every key included, freeing the memory again included. The alternatives make the
same tensors: by filling each once with a constant, which any padding has to do at the least, in torch's memory and in
numpy's (which is where ours are: numpy asks the system for huge pages, torch does not unless it is told to), and by
padding every key of every row by itself and stacking the rows. All in one thread, so that CPU time is waiting time.
"""

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from windrow.bench import Result, Say, alternate, compared, cpu_s
from windrow.rollout.batching import ATTEMPT_BITS, make_batch
from windrow.trajectory import Chain, Segment, Task, Trajectory, Turn
from windrow.types import AttemptId

if TYPE_CHECKING:
    import torch

WHAT = "padding: ragged trajectories to the tensors of a batch"
ROWS = 1_024
MEAN_TOKENS = 2_048
LONGEST_TOKENS = 4_096
TURNS = 4
GROUP_SIZE = 8
ROUNDS = 15
SEED = 7
PADDING = {"policy_versions": -1.0, "turn_ids": -1.0, "turn_states": -1.0, "step_scores": float("nan")}
"""What is not padded with 0."""

Tensors = dict[str, "torch.Tensor"]


def run(say: Say) -> list[Result]:
    """Measure everything."""
    import torch

    say(f"making {ROWS:,} trajectories of {MEAN_TOKENS:,} tokens on average, {LONGEST_TOKENS:,} at most")
    trajectories = ragged(ROWS)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        say(f"padding them {ROUNDS} times each way, in turns")
        return _compare(trajectories)
    finally:
        torch.set_num_threads(threads)


def ragged(rows: int) -> list[Trajectory]:
    """Trajectories of lognormal length; one is the longest there may be."""
    draw = np.random.default_rng(SEED)
    lengths = draw.lognormal(0.0, 0.5, rows)
    for _ in range(10):  # clipping moves the mean a little each time
        lengths = np.clip(lengths * (MEAN_TOKENS / lengths.mean()), 4 * TURNS, LONGEST_TOKENS)
    lengths[0] = LONGEST_TOKENS
    return [_trajectory(number, round(length), draw) for number, length in enumerate(lengths.tolist())]


def _trajectory(number: int, tokens: int, draw: np.random.Generator) -> Trajectory:
    """Turns of random lengths, half of which is sampled on average."""
    bounds = [0, *np.sort(draw.choice(np.arange(1, tokens), 2 * TURNS - 1, replace=False)).tolist(), tokens]
    pairs = list(zip(bounds[::2], bounds[1::2], bounds[2::2], strict=False))
    segments = [
        part
        for turn, (observed, begin, end) in enumerate(pairs)
        for part in (
            Segment("environment" if turn else "prompt", begin - observed),
            Segment("policy", end - begin, number % 3),
        )
    ]
    logprobs = -draw.random(tokens, np.float32)
    for observed, begin, _ in pairs:
        logprobs[observed:begin] = 0.0
    ids = draw.integers(1, 32_000, tokens, dtype=np.int32)
    return Trajectory(
        attempt=AttemptId(number // GROUP_SIZE, number % GROUP_SIZE),
        seat=number,
        mode="train",
        task=Task(ordinal=number // GROUP_SIZE),
        chains=(Chain(token_ids=ids, logprobs=logprobs, segments=tuple(segments)),),
        turns=tuple(Turn(chain=0, begin=begin, end=end, reward=0.25, finish="stop") for _, begin, end in pairs),
        score=0.25 * TURNS,
        ending="terminated",
    )


def _compare(trajectories: list[Trajectory]) -> list[Result]:
    kinds = ours(trajectories)
    works = (
        partial(ours, trajectories),
        partial(filled_by_torch, kinds),
        partial(filled_by_numpy, kinds),
        partial(padded_by_row, trajectories),
    )
    made, by_torch, by_numpy, by_row = alternate(ROUNDS, *(partial(cpu_s, work) for work in works))
    what = f"{len(trajectories):,} ragged rows to one batch"
    return [
        compared(f"{what} (alternative: torch.full of the same tensors)", 1e3 * made, 1e3 * by_torch, "ms"),
        compared(f"{what} (alternative: numpy.full of the same tensors)", 1e3 * made, 1e3 * by_numpy, "ms"),
        compared(f"{what} (alternative: pad each row and key, then stack)", 1e3 * made, 1e3 * by_row, "ms"),
    ]


def ours(trajectories: list[Trajectory]) -> Tensors:
    batch = make_batch(trajectories, group_ids=[trajectory.attempt.group for trajectory in trajectories]).batch
    assert batch is not None
    return {str(name): batch[name] for name in batch.keys()}  # noqa: SIM118  # a TensorDict iterates over its rows


def filled_by_torch(kinds: Tensors) -> Tensors:
    import torch

    return {name: torch.full(kind.shape, 1, dtype=kind.dtype) for name, kind in kinds.items()}


def filled_by_numpy(kinds: Tensors) -> Tensors:
    import torch

    types = {name: kind.numpy().dtype for name, kind in kinds.items()}
    return {name: torch.from_numpy(np.full(kind.shape, 1, types[name])) for name, kind in kinds.items()}


def padded_by_row(trajectories: list[Trajectory]) -> Tensors:
    """Every key of every row padded by itself, then stacked."""
    import torch
    from torch.nn.functional import pad

    rows = [_row(trajectory) for trajectory in trajectories]
    made: Tensors = {}
    for name in rows[0]:
        parts = [row[name] for row in rows]
        if parts[0].ndim:
            width = max(len(part) for part in parts)
            fill = PADDING.get(name, 0.0)
            parts = [pad(part, (0, width - len(part)), value=fill) for part in parts]
        made[name] = torch.stack(parts)
    return made


def _row(trajectory: Trajectory) -> Tensors:
    """The tensors of one row, without padding."""
    import torch

    chain, attempt = trajectory.chains[0], trajectory.attempt
    ids = torch.from_numpy(chain.token_ids).long()
    lengths = torch.tensor([segment.length for segment in chain.segments])
    sampled = torch.tensor([segment.author == "policy" for segment in chain.segments])
    versions = torch.tensor([segment.version for segment in chain.segments], dtype=torch.int32)
    turns = torch.full((len(ids),), -1, dtype=torch.int32)
    for number, turn in enumerate(trajectory.turns):
        turns[turn.begin : turn.end] = number
    scores = torch.zeros(len(ids))
    scores[-1] = trajectory.score
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "position_ids": torch.arange(len(ids)),
        "response_mask": sampled.repeat_interleave(lengths),
        "prompt_mask": torch.arange(len(ids)) < chain.segments[0].length,
        "scores": scores,
        "infer_logprobs": torch.from_numpy(chain.logprobs),
        "policy_versions": versions.repeat_interleave(lengths),
        "turn_ids": turns,
        "traj_group_id": torch.tensor(attempt.group),
        "traj_id": torch.tensor((attempt.group << ATTEMPT_BITS) + attempt.index),
        "env_ids": torch.tensor(trajectory.seat),
        "step_scores": torch.tensor([turn.reward for turn in trajectory.turns]),
        "num_turns": torch.tensor(len(trajectory.turns)),
        "episode_scores": torch.tensor(sum(turn.reward for turn in trajectory.turns)),
        "turn_states": torch.full((len(trajectory.turns),), -1),
    }
