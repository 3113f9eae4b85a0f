"""Every loss and every way to use a reference trains a policy in a whole small run."""

import math
from pathlib import Path
from typing import Any

import pytest
from tests.pipelines.kit import LESSON, exact, small, train

from windrow.pipelines.config import Saving, Validation
from windrow.train.config import EstimatorConfig, LossConfig
from windrow.types import but

LONGER = but(LESSON, supervised=but(LESSON.supervised, steps=60))
"""Enough for some success in every batch."""


@pytest.mark.parametrize(
    ("loss", "estimator", "told"),
    [
        ({"kind": "gspo", "aggregation": "sequence_mean"}, "grpo", "train/row_ratio"),
        ({"kind": "cispo"}, "rloo", "train/clip_share"),
        ({"kind": "topr"}, "reinforce_pp", "train/taper_share"),
        ({"kind": "pg"}, "reinforce", "train/kl_old"),
        ({"kl_in_reward": 0.1, "kl_kind": "k1"}, "reinforce", "train/kl_in_reward"),
    ],
    ids=["gspo", "cispo", "topr", "pg", "kl_in_reward"],
)
def test_every_loss_trains(loss: dict[str, Any], estimator: Any, told: str, tmp_path: Path):
    file = small(
        steps=2,
        warm_start=LONGER,
        validate=Validation(tasks=2, every=0, at_once=2, greedy=False),
        save=Saving(every=0, trajectories=0),
    )
    settings = but(file.train, estimator=EstimatorConfig(kind=estimator), loss=LossConfig(**loss), minibatches=2)
    outcome, folder = train(exact(but(file, train=settings)), tmp_path)
    assert outcome.steps == 2
    lines = [line.values for line in folder.metrics if "train/steps" in line.values]
    assert len(lines) == 2
    learnt = [line for line in lines if line["train/steps"] > 0]
    assert learnt, "nothing was learnt, so nothing was tried"
    for line in learnt:
        assert math.isfinite(line["train/loss"])
        assert line["train/grad_norm"] > 0
        assert math.isfinite(line[told])
    assert all(line["train/mismatch_mean"] < 1e-4 for line in lines)
