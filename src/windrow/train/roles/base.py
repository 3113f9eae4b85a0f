"""What all roles need: a model from whatever they were given."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np
import torch

from windrow.protocol import DataProto
from windrow.train.config import MicroConfig, ModelConfig
from windrow.train.learner import Peers
from windrow.train.micro import Ints, minibatches
from windrow.train.models import load_model, silenced
from windrow.train.networks import Policy, Values, check_packing
from windrow.train.rows import Rows, column

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

Dtype = Literal["float32", "bfloat16"]
N = TypeVar("N", Policy, Values)

LAST = {"train/lr", "train/skipped_steps"}
SUMMED = {"train/seconds", "train/tokens"}

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def model_of(model: "ModelConfig | PreTrainedModel", seed: int) -> "PreTrainedModel":
    """A model that the role owns from now on."""
    return load_model(model, seed) if isinstance(model, ModelConfig) else silenced(model)


def dtype_of(model: "ModelConfig | PreTrainedModel", dtype: Dtype | None) -> torch.dtype:
    """Of the arithmetic: as said, else as configured, else float32."""
    configured = model.dtype if isinstance(model, ModelConfig) else "float32"
    return DTYPES[dtype or configured]


def prepared(network: N, micro: MicroConfig, peers: Peers) -> N:
    """A network that can read what micro-batches hold, spread over all processes."""
    if micro.packing:
        check_packing(network)
    peers.adopt(network)
    return network


def added(batch: DataProto, **columns: "Tensor") -> DataProto:
    """The batch with more columns, where its other columns are; one that it has already is replaced."""
    there = [] if batch.batch is None else [name for name in columns if name in batch.batch]
    if there:
        batch.pop(batch_keys=there)
    return batch.union(DataProto.from_dict({name: column.cpu() for name, column in columns.items()}))


def parts_of(batch: DataProto, rows: Rows, count: int, epochs: int, chance: Sequence[int]) -> list[Ints]:
    """The rows of each step: `count` mini-batches that keep groups whole, drawn anew in each epoch."""
    groups = column(batch, "traj_group_id").cpu().numpy()
    seeds = np.random.SeedSequence(chance).generate_state(epochs)
    return [part for seed in seeds for part in minibatches(groups, rows.lengths, count, int(seed))]


def mean_over_steps(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """What several steps said, in one; times and tokens are added up, of the learning rate the last counts."""
    found = {"train/steps": float(len(steps))}
    for name in steps[0] if steps else ():
        values = [step[name] for step in steps]
        found[name] = values[-1] if name in LAST else sum(values) / (1 if name in SUMMED else len(values))
    if steps:
        found["train/tokens_per_s"] = found["train/tokens"] / found["train/seconds"]
    return found
