"""A reward that was given a device has its host there; others are wherever Ray puts them."""

import asyncio

import pytest
import ray
from tests.rollout.ray.stage import full, staged

from windrow.errors import ConfigError
from windrow.rewards.protocol import Score
from windrow.rollout.env_config import RewardLimits
from windrow.trajectory import Trajectory

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]


class Placed:
    """Scores 1 among reserved devices, 0 elsewhere."""

    async def score(self, _: Trajectory) -> Score:
        return Score(float(ray.get_runtime_context().get_placement_group_id() is not None))


async def worth(device: int | None) -> list[float]:
    async with staged("ray", engines=2) as stage:
        rollouts = stage.scheduler(reward=Placed(), reward_limits=RewardLimits(device=device))
        batch = await full(rollouts, 0)
        scores: list[float] = batch.batch["episode_scores"].tolist()
        return scores


@pytest.mark.parametrize(("device", "score"), [(1, 1.0), (None, 0.0)])
def test_a_reward_is_scored_on_its_device(device: int | None, score: float):
    assert asyncio.run(worth(device)) == [score] * 8


def test_a_device_that_there_is_not_is_refused():
    with pytest.raises(ConfigError, match=r"a reward: no devices \[7\]; there are \[0, 1\]"):
        asyncio.run(worth(7))
