"""Success on held-out tasks, under one version of the weights.

Promises: every held-out task counts. One that gave no trajectory, because its environment, its reward or its engines
failed too often, counts as not solved, and how many there were is said.
"""

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from windrow.errors import TrainError
from windrow.pipelines.watching import Evaluation
from windrow.protocol import DataProto
from windrow.rollout.summary import ROUNDING
from windrow.types import Reason, Value

if TYPE_CHECKING:
    from windrow.rollout.scheduler import RolloutScheduler

log = logging.getLogger(__name__)

ALL = -1
GIVEN_UP: tuple[Reason, ...] = ("failed", "poisoned", "lost", "stale")
"""Why a held-out task gave no trajectory, though one was wanted."""


class Passed(Value, frozen=True, kw_only=True, gc=True):
    """One pass over the held-out tasks."""

    tasks: int
    """All of them, those that failed as well."""
    failed: int
    """Of these gave no trajectory."""
    score: float
    """Mean of those that gave one."""
    success: float
    """With several domains the mean over them, so that a large one does not outweigh the others."""
    domains: Mapping[str, float]
    """Of the tasks that gave a trajectory; of which domain the others were is not known."""


async def evaluate(
    held_out: "RolloutScheduler", step: int, success_at: Mapping[str, float], *, greedy: bool
) -> Evaluation:
    """Play all held-out tasks as in training, and once more with the likeliest token each time.

    `success_at` says for each tag from which score on an episode is a success.
    """
    began = time.monotonic()
    sampled = await _pass(held_out, {"global_step": step}, success_at)
    likeliest = None
    if greedy:
        asked = {"global_step": step, "pass": "greedy", "sampling": {"temperature": 0.0}}
        likeliest = await _pass(held_out, asked, success_at)
    return Evaluation(
        step=step,
        tasks=sampled.tasks,
        failed=max(sampled.failed, 0 if likeliest is None else likeliest.failed),
        success=sampled.success,
        greedy=None if likeliest is None else likeliest.success,
        score=sampled.score,
        domains=dict(sampled.domains),
        greedy_domains={} if likeliest is None else dict(likeliest.domains),
        seconds=time.monotonic() - began,
    )


async def _pass(held_out: "RolloutScheduler", asked: dict[str, object], success_at: Mapping[str, float]) -> Passed:
    before = _given_up(held_out)
    batch = await held_out.get_batch(DataProto(meta_info=asked), ALL)
    if batch is None:
        raise TrainError(f"validation {asked} got no trajectories; look for failed attempts in the log")
    check_one_version(batch)
    found = passed(batch, success_at, _given_up(held_out) - before)
    if found.failed:
        told = f"{found.failed} of {found.tasks}"
        log.warning("%s held-out tasks failed after %s updates and count as not solved", told, asked["global_step"])
    return found


def _given_up(held_out: "RolloutScheduler") -> int:
    """How many groups of validation were ever given up."""
    ledger = held_out.ledger().get("val")  # there is none before anything was played
    return 0 if ledger is None else sum(ledger.groups.dropped.get(why, 0) for why in GIVEN_UP)


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


def passed(batch: DataProto, success_at: Mapping[str, float], given_up: int = 0) -> Passed:
    """What the trajectories of a batch reached, beside which so many groups were given up.

    A trajectory that has several rows counts once.
    """
    assert batch.batch is not None
    _, first = np.unique(batch.batch["traj_id"].numpy(), return_index=True)
    scores = batch.batch["scores"].sum(1).numpy()[first]
    tags = batch.non_tensor_batch["tags"][first]
    done = scores >= np.array([success_at[tag] for tag in tags]) - ROUNDING
    domains = {tag: float(done[tags == tag].mean()) for tag in sorted(set(tags.tolist()))}
    failed = given_up * (len(done) // len(np.unique(batch.batch["traj_group_id"].numpy())))
    played = len(done) / (len(done) + failed)
    return Passed(
        tasks=len(done) + failed,
        failed=failed,
        score=float(scores.mean()),
        success=played * sum(domains.values()) / len(domains),
        domains={} if [*domains] == [""] else domains,
    )
