"""Rewards by their names."""

import pytest
from tests.rewards.given import said

from windrow.envs.shipped import SHIPPED as ENVS
from windrow.errors import ConfigError
from windrow.rewards.protocol import Reward, Score
from windrow.rewards.shaping import LengthReward
from windrow.rewards.shipped import SHIPPED, find, make
from windrow.rewards.sums import WeightedSum


@pytest.mark.parametrize("name", sorted({*SHIPPED} - {"model"}))
def test_a_reward_is_found_by_its_name(name: str):
    assert isinstance(find(name), Reward)


def test_the_reward_of_every_shipped_environment_exists():
    assert {env.reward for env in ENVS.values() if env.reward} <= set(SHIPPED)


def test_arguments_are_those_of_the_class():
    reward = find("length", soft_tokens=1, hard_tokens=3)
    assert isinstance(reward, LengthReward)
    assert reward.score(said("x", tokens=2)).value == -0.5


def test_names_with_weights_are_a_sum():
    reward = find({"math": 1.0, "env": 0.5})
    assert isinstance(reward, WeightedSum)
    score = reward.score(said("19", {"answer": "19"}, rewards=(3.0,)))
    assert isinstance(score, Score)
    assert (score.value, score.parts) == (2.5, {"math": 1.0, "env": 3.0})


def test_arguments_go_to_the_reward_that_they_name():
    reward = make({"length": 1.0, "env": 1.0}, {"length": {"soft_tokens": 1, "hard_tokens": 3}})
    assert isinstance(reward, WeightedSum)
    score = reward.score(said("x", tokens=2))
    assert isinstance(score, Score)
    assert score.parts == {"length": -0.5, "env": 0.0}


@pytest.mark.parametrize(
    ("what", "args", "words"),
    [
        ("model", {}, "reward 'model': missing a required argument: 'path'; reward_args.model takes path, device"),
        ("length", {"length": {"soft": 1}}, "unexpected keyword argument 'soft'; reward_args.length takes"),
        ("length", {"math": {}}, "reward_args names 'math', which is no part of the reward"),
        ("model", {"model": {"path": "nowhere"}}, "reward model nowhere has no config.json; give a folder"),
        ("model", {"model": {"path": "nowhere", "tokens": 0}}, "tokens must be 1 or more, got 0"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(what: str, args: dict[str, dict[str, object]], words: str):
    with pytest.raises(ConfigError) as refused:
        make(what, args)
    assert words in str(refused.value)


@pytest.mark.parametrize("what", ["mth", {"mth": 1.0}])
def test_an_unknown_reward_suggests_the_nearest(what: str | dict[str, float]):
    with pytest.raises(ConfigError, match=r"unknown reward 'mth'; did you mean math\?"):
        find(what)


def test_a_sum_takes_no_arguments():
    with pytest.raises(ConfigError, match="arguments soft_tokens for a weighted sum"):
        find({"length": 1.0}, soft_tokens=3)
