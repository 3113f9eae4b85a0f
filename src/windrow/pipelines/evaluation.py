"""Success on held-out tasks, under one version of the weights."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from windrow.errors import TrainError
from windrow.pipelines.watching import Evaluation
from windrow.protocol import DataProto
from windrow.rollout.summary import ROUNDING
from windrow.types import Value

if TYPE_CHECKING:
    from windrow.rollout.scheduler import RolloutScheduler


ALL = -1


class Passed(Value, frozen=True, kw_only=True, gc=True):
    """One pass over the held-out tasks."""

    tasks: int
    score: float
    success: float
    """With several domains the mean over them, so that a large one does not outweigh the others."""
    domains: Mapping[str, float]


async def evaluate(
    held_out: "RolloutScheduler", step: int, success_at: Mapping[str, float], *, greedy: bool
) -> Evaluation:
    """Play all held-out tasks as in training, and once more with the likeliest token each time.

    `success_at` says for each tag from which score on an episode is a success.
    """
    began = time.monotonic()
    sampled = passed(await _pass(held_out, {"global_step": step}), success_at)
    likeliest = None
    if greedy:
        asked = {"global_step": step, "pass": "greedy", "sampling": {"temperature": 0.0}}
        likeliest = passed(await _pass(held_out, asked), success_at)
    return Evaluation(
        step=step,
        tasks=sampled.tasks,
        success=sampled.success,
        greedy=None if likeliest is None else likeliest.success,
        score=sampled.score,
        domains=dict(sampled.domains),
        greedy_domains={} if likeliest is None else dict(likeliest.domains),
        seconds=time.monotonic() - began,
    )


async def _pass(held_out: "RolloutScheduler", asked: dict[str, object]) -> DataProto:
    batch = await held_out.get_batch(DataProto(meta_info=asked), ALL)
    if batch is None:
        raise TrainError(f"validation {asked} got no trajectories; look for failed attempts in the log")
    check_one_version(batch)
    return batch


def check_one_version(batch: DataProto) -> None:
    """Raises TrainError if other weights than those of one version sampled a validation batch."""
    assert batch.batch is not None
    versions = batch.batch["policy_versions"]
    found = versions[versions >= 0].unique().tolist()
    if len(found) > 1:
        raise TrainError(
            f"validation was sampled by versions {found} of the weights; it says something about one of them only if "
            f"nobody updates weights before it ends"
        )


def passed(batch: DataProto, success_at: Mapping[str, float]) -> Passed:
    """What the trajectories of a batch reached; one that has several rows counts once."""
    assert batch.batch is not None
    _, first = np.unique(batch.batch["traj_id"].numpy(), return_index=True)
    scores = batch.batch["scores"].sum(1).numpy()[first]
    tags = batch.non_tensor_batch["tags"][first]
    done = scores >= np.array([success_at[tag] for tag in tags]) - ROUNDING
    domains = {tag: float(done[tags == tag].mean()) for tag in sorted(set(tags.tolist()))}
    return Passed(
        tasks=len(done),
        score=float(scores.mean()),
        success=sum(domains.values()) / len(domains),
        domains={} if [*domains] == [""] else domains,
    )
