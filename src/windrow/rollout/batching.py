"""Padded tensors from ragged trajectories, once.

Promises: every real token stands where its chain has it, and padding, on the right, is everything else: `pad_token_id`
in `input_ids`, 0 in `attention_mask`, `position_ids`, `scores` and `infer_logprobs`, -1 in `policy_versions` and
`turn_ids`, False in the masks. A trajectory gives a row per chain (one, unless history was rewritten), or a row per
turn, which ends with that turn's response and counts all before it as prompt: what was sampled in earlier turns has no
mask, log-probability, version or turn there. Rows stay in the order of trajectories, and every trajectory has at least
one row: without turns that is its first chain, with `turn_index` -1.

The episode's score stands on the last real token of each of its rows; `episode_scores` is the sum of its rewards per
turn. Nothing is cut off silently: `cut_turns` counts the responses of a row that a limit cut off instead of ending
themselves; a row that is longer than `sequence_length` loses its end, `cut` counts the lost tokens, and the score moves
to the last token that is left; `truncated` is True for both (of the last response), as it is for an episode that was
cut off itself. A row may have nothing sampled left; it stays, with an empty `response_mask`, and is counted.

`turn_ids` is the index of its turn in the episode on every sampled token of a row and -1 on all others. `turn_states`
is a number for what was shown before each turn, the same for the same messages in any process, and -1 where there is no
turn or nobody wrote down what was shown.

`stale_cache` is there only if an engine kept its cache over a weight update: True on tokens sampled on top of it.

`traj_id` is group · 2²⁰ + index of the attempt, which no other attempt shares; `traj_name` spells it as `g3.a1`.

How: all rows of a tensor are laid out as one flat sequence of runs and pieces, which numpy writes once, padding
included, into memory that nothing has touched before (`numpy.empty` asks for huge pages, `torch.empty` does not).
Padding blocks for tens of milliseconds; call it off the event loop.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from windrow.errors import DataError
from windrow.protocol import DataProto
from windrow.text import Message
from windrow.trajectory import Chain, Segment, Trajectory, Turn
from windrow.types import Value, to_json

if TYPE_CHECKING:
    import torch

RowKind = Literal["trajectory", "turn"]

ATTEMPT_BITS = 20
"""A group has fewer attempts than 2 to this power, spares and retries included."""

Array = NDArray[Any]  # of the dtype that the column has
Lengths = NDArray[np.int64]


class Row(Value, frozen=True, gc=True):
    """The beginning of one chain."""

    owner: int
    """Index of its trajectory."""
    chain: Chain
    since: int
    """What was sampled before this place counts as prompt."""
    end: int
    """One past its last token, before anything is cut off."""
    turn: int
    """Index of its turn; -1 if it is not of a single one."""
    sampled: tuple[tuple[int, Turn], ...]
    """The turns whose responses are trained on in it, each with its index."""


def make_batch(
    trajectories: Sequence[Trajectory],
    *,
    group_ids: Sequence[int],
    rows: RowKind = "trajectory",
    sequence_length: int | None = None,
    pad_to_multiple: int = 1,
    pad_token_id: int = 0,
) -> DataProto:
    """All trajectories as one batch, padded to the longest row, or to `sequence_length` exactly.

    `group_ids` says for each trajectory which `traj_group_id` its rows share with its siblings.
    """
    _check(trajectories, group_ids, rows)
    made = list(_rows(trajectories, rows))
    ends = np.array([row.end for row in made], np.int64)
    width = _width(int(ends.max()), sequence_length, pad_to_multiple)
    lengths = np.minimum(ends, width)
    owners = np.array([row.owner for row in made], np.int64)
    columns = _tokens(made, lengths, width, pad_token_id)
    columns["turn_ids"] = _turn_ids(made, lengths, width)
    columns |= _scores(trajectories, owners, lengths, width)
    columns["turn_states"] = _turn_states(trajectories)[owners]
    columns |= _ids(trajectories, owners, group_ids)
    if rows == "turn":
        columns["turn_index"] = np.array([row.turn for row in made], np.int64)
    cut = ends - lengths
    cut_turns = np.array([_cut_turns(row, trajectories[row.owner]) for row in made], np.int64)
    return DataProto.from_dict(
        tensors={name: _as_tensor(column) for name, column in columns.items()},
        non_tensors=_labels(trajectories, owners, group_ids, cut) | {"cut_turns": cut_turns},
        meta_info={"metrics": _metrics(columns["response_mask"], lengths, cut)},
    )


def _check(trajectories: Sequence[Trajectory], group_ids: Sequence[int], rows: str) -> None:
    if not trajectories:
        raise DataError("a batch needs at least one trajectory, got none")
    if len(group_ids) != len(trajectories):
        raise DataError(f"{len(trajectories)} trajectories need as many group_ids, got {len(group_ids)}")
    if rows not in {"trajectory", "turn"}:
        raise DataError(f"rows must be trajectory or turn, got {rows}")
    for trajectory in trajectories:
        _check_chains(trajectory)
        _check_turns(trajectory)


def _check_chains(trajectory: Trajectory) -> None:
    attempt = trajectory.attempt
    if not 0 <= attempt.index < 1 << ATTEMPT_BITS or not 0 <= attempt.group < 1 << 63 - ATTEMPT_BITS:
        raise DataError(f"{attempt} has no traj_id; an index must be below {1 << ATTEMPT_BITS:,} and nothing negative")
    if not trajectory.chains:
        raise DataError(f"{attempt} has no tokens at all; a trajectory needs a chain")
    for number, chain in enumerate(trajectory.chains):
        tokens, logprobs = len(chain.token_ids), len(chain.logprobs)
        written = sum(map(attrgetter("length"), chain.segments))
        if not tokens == logprobs == written:
            raise DataError(
                f"{attempt} chain {number} has {tokens} tokens, {logprobs} log-probabilities and segments of "
                f"{written} tokens; these must be one number"
            )


def _check_turns(trajectory: Trajectory) -> None:
    """Turns lie in their chains one after the other and are all that was sampled."""
    ends = [len(chain.token_ids) for chain in trajectory.chains]
    since = [0] * len(ends)
    sampled = 0
    for number, turn in enumerate(trajectory.turns):
        chain, begin, end = turn.chain, turn.begin, turn.end
        if not 0 <= chain < len(ends) or not since[chain] <= begin <= end <= ends[chain]:
            raise DataError(
                f"{trajectory.attempt} turn {number} is at {begin} to {end} of chain {chain}, "
                f"which is not in chains of {ends} tokens; turns must lie in their chains, one after the other"
            )
        since[chain] = end
        sampled += end - begin
    written = sum(part.length for chain in trajectory.chains for part in chain.segments if part.author == "policy")
    if written != sampled:
        raise DataError(
            f"{trajectory.attempt} has {written} sampled tokens and turns of {sampled}; each of them needs a turn"
        )


def _rows(trajectories: Sequence[Trajectory], kind: RowKind) -> Iterator[Row]:
    for owner, trajectory in enumerate(trajectories):
        chains, turns = trajectory.chains, tuple(enumerate(trajectory.turns))
        if kind == "trajectory":
            for number, chain in enumerate(chains):
                own = turns if len(chains) == 1 else tuple(pair for pair in turns if pair[1].chain == number)
                yield Row(owner, chain, 0, len(chain.token_ids), -1, own)
            continue
        for number, turn in turns:
            yield Row(owner, chains[turn.chain], turn.begin, turn.end, number, ((number, turn),))
        if not turns:
            yield Row(owner, chains[0], 0, len(chains[0].token_ids), -1, ())


def _cut_turns(row: Row, trajectory: Trajectory) -> int:
    """Responses in a row that a limit cut off."""
    turns = trajectory.turns if row.turn < 0 else trajectory.turns[row.turn : row.turn + 1]
    return sum(turn.finish == "length" and trajectory.chains[turn.chain] is row.chain for turn in turns)


def _was_cut_off(trajectory: Trajectory) -> bool:
    """The episode, or its last response, did not come to its own end."""
    return trajectory.is_truncated or (bool(trajectory.turns) and trajectory.turns[-1].finish == "length")


def _width(longest: int, sequence_length: int | None, multiple: int) -> int:
    """Tokens per row, padding included."""
    if multiple < 1:
        raise DataError(f"pad_to_multiple must be 1 or more, got {multiple}")
    up = -(-(longest if sequence_length is None else sequence_length) // multiple) * multiple
    if sequence_length is None:
        return up
    if sequence_length < 1:
        raise DataError(f"sequence_length must be 1 or more, got {sequence_length}")
    if sequence_length != up:
        raise DataError(f"sequence_length {sequence_length} is no multiple of pad_to_multiple {multiple}; use {up}")
    return sequence_length


def _tokens(rows: Sequence[Row], lengths: Lengths, width: int, pad_token_id: int) -> dict[str, Array]:
    """What stands beside each token."""
    shape = len(rows), width
    runs = [_runs(row, length, width) for row, length in zip(rows, lengths.tolist(), strict=True)]
    prompts = np.minimum([_prompt_length(row) for row in runs], lengths)
    run_lengths = np.array([run.length for row in runs for run in row], np.int64)
    sampled = np.array([run.author == "policy" for row in runs for run in row], np.bool_)
    versions = np.array([run.version for row in runs for run in row], np.int32)
    stale = [run.stale_cache for row in runs for run in row]
    marks = {"stale_cache": np.repeat(np.array(stale), run_lengths).reshape(shape)} if any(stale) else {}
    return marks | {
        "input_ids": _joined(_token_pieces(rows, lengths, width, pad_token_id), shape, np.int64),
        "attention_mask": _first(lengths, shape, np.int64),
        "position_ids": _joined(_position_pieces(lengths, width), shape, np.int64),
        "response_mask": np.repeat(sampled, run_lengths).reshape(shape),
        "prompt_mask": _first(prompts, shape, np.bool_),
        "infer_logprobs": _joined(_logprob_pieces(rows, lengths, width), shape, np.float32),
        "policy_versions": np.repeat(np.where(sampled, versions, -1), run_lengths).reshape(shape),
    }


def _runs(row: Row, length: int, width: int) -> list[Segment]:
    """Who wrote the row's tokens, seen from its own turn, and the padding."""
    padding = Segment("environment", width - length)
    if row.since == 0 and length == len(row.chain.token_ids):
        return [*row.chain.segments, padding]
    runs = [Segment("prompt", min(row.since, length))]
    for begin, end, segment in row.chain.spans():
        left = min(end, length) - max(begin, row.since)
        if left > 0:
            runs.append(Segment(segment.author, left, segment.version, segment.stale_cache))
    return [*runs, padding]


def _prompt_length(runs: Sequence[Segment]) -> int:
    """Tokens before the first sampled one; the whole width if there is none."""
    tokens = 0
    for run in runs:
        if run.author == "policy" and run.length:
            break
        tokens += run.length
    return tokens


def _token_pieces(rows: Sequence[Row], lengths: Lengths, width: int, pad_token_id: int) -> Iterator[Array]:
    padding = np.full(width, pad_token_id, np.int64)
    for row, length in zip(rows, lengths.tolist(), strict=True):
        yield row.chain.token_ids[:length]
        yield padding[length:]


def _position_pieces(lengths: Lengths, width: int) -> Iterator[Array]:
    positions, padding = np.arange(width), np.zeros(width, np.int64)
    for length in lengths.tolist():
        yield positions[:length]
        yield padding[length:]


def _logprob_pieces(rows: Sequence[Row], lengths: Lengths, width: int) -> Iterator[Array]:
    nothing = np.zeros(width, np.float32)
    for row, length in zip(rows, lengths.tolist(), strict=True):
        since = min(row.since, length)
        if since:
            yield nothing[:since]
        yield row.chain.logprobs[since:length]
        yield nothing[length:]


def _turn_ids(rows: Sequence[Row], lengths: Lengths, width: int) -> NDArray[np.int32]:
    """Which turn sampled each token."""
    numbers: list[int] = []
    bounds: list[int] = []  # where each run ends, counted through all rows
    for place, (row, length) in enumerate(zip(rows, lengths.tolist(), strict=True)):
        start = place * width
        for number, turn in row.sampled:
            numbers += (-1, number)
            bounds += (start + min(turn.begin, length), start + min(turn.end, length))
        numbers.append(-1)
        bounds.append(start + width)
    ends = np.array(bounds, np.int64)
    runs = ends - np.concatenate([[0], ends[:-1]])
    return np.repeat(np.array(numbers, np.int32), runs).reshape(len(rows), width)


def _turn_states(trajectories: Sequence[Trajectory]) -> NDArray[np.int64]:
    """What was shown before each turn of each trajectory, as numbers."""
    known: dict[tuple[Message, ...], int] = {(): -1}
    turns = [len(trajectory.turns) for trajectory in trajectories]
    states = np.full((len(turns), max(turns)), -1, np.int64)
    there = np.arange(states.shape[1]) < np.array(turns)[:, None]
    states[there] = [
        known[turn.seen] if turn.seen in known else known.setdefault(turn.seen, _state(turn.seen))
        for trajectory in trajectories
        for turn in trajectory.turns
    ]
    return states


def _state(seen: tuple[Message, ...]) -> int:
    """A number from 0 to 2**63 - 1 that some messages have in every process."""
    return int.from_bytes(hashlib.blake2b(to_json(seen), digest_size=8).digest(), "big") >> 1


def _joined(pieces: Iterable[Array], shape: tuple[int, int], dtype: type[np.generic]) -> Array:
    """The pieces of all rows written into one table."""
    flat = np.empty(shape[0] * shape[1], dtype)
    return np.concatenate(list(pieces), out=flat).reshape(shape)


def _first(counts: Lengths, shape: tuple[int, int], dtype: type[np.generic]) -> Array:
    """One in the first places of each row, so many, and zero in the others."""
    runs = np.stack([counts, shape[1] - counts], axis=1).ravel()
    return np.repeat(np.tile(np.array([1, 0], dtype), shape[0]), runs).reshape(shape)


def _scores(
    trajectories: Sequence[Trajectory], owners: NDArray[np.int64], lengths: Lengths, width: int
) -> dict[str, Array]:
    """What each episode and each of its turns was worth."""
    turns = np.array([len(trajectory.turns) for trajectory in trajectories], np.int64)
    rewards = np.full((len(trajectories), int(turns.max())), np.nan)
    rewards[np.arange(rewards.shape[1]) < turns[:, None]] = [
        turn.reward for each in trajectories for turn in each.turns
    ]
    scores = np.zeros((len(owners), width), np.float32)
    real = np.flatnonzero(lengths)  # a row without tokens has no place for a score
    scores[real, lengths[real] - 1] = np.array([each.score for each in trajectories], np.float32)[owners[real]]
    return {
        "scores": scores,
        "step_scores": rewards.astype(np.float32)[owners],
        "num_turns": turns[owners],
        "episode_scores": np.nansum(rewards, axis=1).astype(np.float32)[owners],
    }


def _ids(trajectories: Sequence[Trajectory], owners: NDArray[np.int64], group_ids: Sequence[int]) -> dict[str, Array]:
    attempts = [trajectory.attempt for trajectory in trajectories]
    seats = [trajectory.seat for trajectory in trajectories]
    numbers = [(attempt.group << ATTEMPT_BITS) + attempt.index for attempt in attempts]
    return {
        "traj_group_id": np.array(group_ids, np.int64)[owners],
        "traj_id": np.array(numbers, np.int64)[owners],
        "env_ids": np.array(seats, np.int64)[owners],
    }


def _labels(
    trajectories: Sequence[Trajectory], owners: NDArray[np.int64], group_ids: Sequence[int], cut: Lengths
) -> dict[str, Array]:
    """What is read by people, or is no number."""
    truncated = np.array([_was_cut_off(trajectory) for trajectory in trajectories], np.bool_)
    return {
        "tags": _texts(trajectory.task.tag for trajectory in trajectories)[owners],
        "traj_group_name": _texts(f"g{group}" for group in group_ids)[owners],
        "traj_name": _texts(str(trajectory.attempt) for trajectory in trajectories)[owners],
        "score_parts": np.array([dict(trajectory.scores) for trajectory in trajectories], dtype=object)[owners],
        "ending": _texts(trajectory.ending for trajectory in trajectories)[owners],
        "truncated": truncated[owners] | (cut > 0),
        "cut": cut,
    }


def _texts(texts: Iterable[str]) -> Array:
    return np.array(list(texts), dtype=object)


def _metrics(response_mask: Array, lengths: Lengths, cut: Lengths) -> dict[str, float]:
    tokens = int(lengths.sum())
    return {
        "batch/rows": len(lengths),
        "batch/rows_cut": int(np.count_nonzero(cut)),
        "batch/rows_without_response": len(lengths) - int(np.count_nonzero(response_mask.any(axis=1))),
        "batch/tokens": tokens,
        "batch/tokens_cut": int(cut.sum()),
        "batch/padding_share": 1.0 - tokens / response_mask.size if tokens else 0.0,
    }


def _as_tensor(column: Array) -> "torch.Tensor":
    import torch

    return torch.from_numpy(column)
