"""Batches whose every token is known, and models small enough for a test."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from windrow.protocol import DataProto
from windrow.tiny import Kind, tiny_model
from windrow.train.config import OptimizerConfig, TrainConfig
from windrow.train.learner import Learner
from windrow.train.rows import column
from windrow.types import but

VOCABULARY = 32


def model(kind: Kind = "qwen2", seed: int = 0, *, scale: float = 4.0, **sizes: Any) -> Any:  # a PreTrainedModel
    return tiny_model(kind, seed, VOCABULARY, 64, hidden=16, heads=2, scale=scale, **sizes)


def config(lr: float = 1e-3, **settings: Any) -> TrainConfig:
    return but(TrainConfig(optimizer=OptimizerConfig(lr=lr)), **settings)


def batch(
    lengths: Sequence[tuple[int, int]] = ((3, 4), (5, 2), (2, 7), (4, 4)),
    *,
    group_size: int = 2,
    seed: int = 0,
    temperature: float = 1.0,
) -> DataProto:
    """Rows of a prompt and a response with so many tokens each; scores are 0, 1, 0, 1 …"""
    torch.manual_seed(seed)
    width = max(map(sum, lengths))
    rows = len(lengths)
    ids = torch.randint(1, VOCABULARY, (rows, width))
    places = torch.arange(width)
    begins = torch.tensor([prompt for prompt, _ in lengths])[:, None]
    ends = torch.tensor([sum(each) for each in lengths])[:, None]
    sampled = (places >= begins) & (places < ends)
    scores = torch.zeros(rows, width)
    scores[torch.arange(rows), ends[:, 0] - 1] = torch.arange(rows) % 2 * 1.0
    return DataProto.from_dict(
        {
            "input_ids": torch.where(places < ends, ids, 0),
            "attention_mask": (places < ends).long(),
            "position_ids": torch.where(places < ends, places, 0),
            "response_mask": sampled,
            "prompt_mask": places < begins,
            "infer_logprobs": torch.where(sampled, -torch.rand(rows, width), 0.0),
            "policy_versions": torch.where(sampled, 0, -1).int(),
            "turn_ids": torch.where(sampled, 0, -1).int(),
            "scores": scores,
            "traj_group_id": torch.arange(rows) // group_size,
            "traj_id": torch.arange(rows),
        },
        meta_info={"temperature": temperature, "version": 0},
    )


def siblings(*, group_size: int = 3, seed: int = 0, temperature: float = 1.0) -> DataProto:
    """Groups of answers to a prompt each; two answers of the second begin alike, and are longer than the others."""
    lengths = [(6, 3), (6, 1), (6, 2), (5, 8), (5, 7), (5, 2)]
    found = batch(lengths, group_size=group_size, seed=seed, temperature=temperature)
    ids = column(found, "input_ids")
    ids[1, :6] = ids[2, :6] = ids[0, :6]
    ids[4, :5] = ids[5, :5] = ids[3, :5]
    ids[4, 5:8] = ids[3, 5:8]
    ids[0, 6], ids[1, 6], ids[2, 6], ids[3, 5], ids[5, 5] = 1, 2, 3, 4, 5  # and all others differ at once
    ids[4, 5] = ids[3, 5]
    ids[4, 8] = (ids[3, 8] + 1) % VOCABULARY
    return found


SIBLINGS_APART = 9 + 7 + 8 + 13 + 12 + 7
SIBLINGS_ONCE = 6 + 3 + 1 + 2 + 5 + 8 + 4 + 2
"""Tokens of `siblings`, one row at a time and where each is computed once."""


def with_advantages(data: DataProto, advantages: Tensor | None = None) -> DataProto:
    """Good and bad rows in turn, or as given."""
    mask = column(data, "response_mask")
    good = torch.arange(len(data))[:, None] % 2 * 2.0 - 1.0 if advantages is None else advantages
    return data.union(DataProto.from_dict({"advantages": mask * good}))


def plain_logprobs(model: Any, data: DataProto, temperature: float = 1.0) -> Tensor:
    """(B, L) row by row, all logits, nothing clever."""
    ids, mask, real = (column(data, name) for name in ("input_ids", "response_mask", "attention_mask"))
    out = torch.zeros(ids.shape)
    for row in range(len(data)):
        length = int(real[row].sum())
        logits = model(input_ids=ids[row : row + 1, :length], use_cache=False).logits[0].float() / temperature
        scores = torch.log_softmax(logits, -1)
        for place in range(1, length):
            if mask[row, place]:
                out[row, place] = scores[place - 1, ids[row, place]]
    return out


def assert_alike(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], share: float = 1e-5) -> None:
    """The same tensors up to rounding: apart by no more than a share of the largest number in each."""
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        apart, largest = (found[name] - tensor).abs().max(), tensor.abs().max()
        assert apart <= share * largest, f"{name} is apart by {apart:.3g}, its largest number is {largest:.3g}"


def weights(learner: Learner) -> dict[str, Tensor]:
    return {name: each.detach().clone() for name, each in learner.parameters.items()}
