"""Form, length, and the environment's own rewards."""

import pytest
from tests.rewards.given import said

from windrow.errors import ConfigError
from windrow.requests import FinishReason
from windrow.rewards.shaping import EnvReward, FormatReward, LengthReward
from windrow.trajectory import Ending


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<think>hm</think><answer>4</answer>", 1.0),
        (" <think>\nhm\n</think>\n\n<answer>4</answer>\n", 1.0),
        ("<think>hm</think>4", 0.0),
        ("<answer>4</answer><think>hm</think>", 0.0),
        ("<think>hm</think><answer>4</answer> so", 0.0),
        ("<think></think><answer>4</answer>", 0.0),
        ("<think>hm</think><answer> </answer>", 0.0),
        ("<think>a</think><think>b</think><answer>4</answer>", 0.0),
        ("<think>hm<answer>4</answer></think>", 0.0),
        ("", 0.0),
    ],
)
def test_tags_come_once_in_order_and_filled(text: str, value: float):
    assert FormatReward().score(said(text)).value == value


@pytest.mark.parametrize("text", ["</think><think>" + "a " * 50_000, "<think>" * 10_000, "<think>" + " " * 100_000])
def test_no_text_keeps_the_tags_busy(text: str):
    assert FormatReward().score(said(text)).value == 0.0


def test_a_pattern_must_match_the_whole():
    reward = FormatReward(pattern=r"answer: \d+")
    assert reward.score(said("answer: 12")).value == 1.0
    assert reward.score(said("the answer: 12")).value == 0.0
    assert reward.score(said("answer: 12!")).value == 0.0


@pytest.mark.parametrize("args", [{"tags": ()}, {"tags": ("a b",)}, {"tags": ("<",)}, {"pattern": "("}])
def test_a_form_that_cannot_be_is_refused(args: dict[str, object]):
    with pytest.raises(ConfigError):
        FormatReward(**args)  # type: ignore[arg-type]  # a table of cases


@pytest.mark.parametrize(
    ("tokens", "value"), [(0, 0.0), (100, 0.0), (101, -0.01), (150, -0.5), (200, -1.0), (5000, -1.0)]
)
def test_length_is_free_and_then_costs_in_proportion(tokens: int, value: float):
    reward = LengthReward(soft_tokens=100, hard_tokens=200)
    assert reward.score(said("x", tokens=tokens)).value == pytest.approx(value)


def test_length_counts_the_tokens_of_all_turns():
    reward = LengthReward(soft_tokens=100, hard_tokens=200)
    assert reward.score(said("x", tokens=50, rewards=(0.0, 0.0, 0.0))).value == -0.5


@pytest.mark.parametrize(
    ("finish", "ending"), [("length", "terminated"), ("stop", "max_tokens"), ("stop", "context"), ("length", "context")]
)
def test_what_was_cut_off_was_too_long(finish: FinishReason, ending: Ending):
    trajectory = said("x", tokens=5, finish=finish, ending=ending)
    assert LengthReward().score(trajectory).value == -1.0
    assert LengthReward(cut_off=False).score(trajectory).value == 0.0


@pytest.mark.parametrize("limits", [(10, 10), (20, 10), (-1, 10)])
def test_limits_that_cannot_be_are_refused(limits: tuple[int, int]):
    with pytest.raises(ConfigError, match="soft_tokens is"):
        LengthReward(soft_tokens=limits[0], hard_tokens=limits[1])


def test_the_environments_own_rewards_are_summed():
    assert EnvReward().score(said("x", rewards=(0.5, -0.25, 1.0))).value == 1.25
    assert EnvReward().score(said("x", rewards=())).value == 0.0
