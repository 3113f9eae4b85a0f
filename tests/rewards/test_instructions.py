"""Whether instructions were followed."""

from typing import Any

import pytest
from tests.rewards.given import said

from windrow.errors import RewardError
from windrow.rewards.instructions import InstructionReward

RULES: list[dict[str, Any]] = [
    {"kind": "length", "count": 3},
    {"kind": "end", "given": "moon"},
    {"kind": "case", "case": "lower"},
    {"kind": "avoid", "letter": "z"},
]


@pytest.mark.parametrize(
    ("text", "value", "parts"),
    [
        ("under the moon", 1.0, [1, 1, 1, 1]),
        ("Under the moon", 0.75, [1, 1, 0, 1]),
        ("the moon\n", 0.75, [0, 1, 1, 1]),
        ("Zoo", 0.0, [0, 0, 0, 0]),
        ("", 0.0, [0, 0, 0, 0]),
        (" \n", 0.0, [0, 0, 0, 0]),
        ("...", 0.0, [0, 0, 0, 0]),
    ],
)
def test_the_share_that_was_followed_is_the_score(text: str, value: float, parts: list[float]):
    score = InstructionReward().score(said(text, {"rules": RULES}))
    assert score.value == value
    assert score.parts == dict(zip(["length", "end", "case", "avoid"], parts, strict=True))
    strict = InstructionReward(strict=True).score(said(text, {"rules": RULES}))
    assert (strict.value, strict.parts) == (float(value == 1.0), score.parts)


def test_two_of_a_kind_have_a_part_each():
    rules = [{"kind": "include", "given": ["sun"]}, {"kind": "include", "given": ["moon"]}]
    assert InstructionReward().score(said("a moon", {"rules": rules})).parts == {"include": 0.0, "include 2": 1.0}


def test_what_was_not_followed_is_said():
    assert "Write exactly 3 words." in InstructionReward().score(said("moon", {"rules": RULES})).note


def test_an_endless_text_follows_nothing():
    assert InstructionReward().score(said("a " * 20_000, {"rules": RULES})).value == 0.0


@pytest.mark.parametrize("rules", [None, [], "x", [{"kind": "sing"}]])
def test_rules_that_cannot_be_read_are_no_zero(rules: object):
    with pytest.raises(RewardError, match="rules"):
        InstructionReward().score(said("moon", {"rules": rules}))
