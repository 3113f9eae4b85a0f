"""Rewards that look at how something was said, and the environment's own.

Promises: `FormatReward` is 1 or 0; `LengthReward` is a penalty, 0 at best and -1 at worst, so that saying little is
never worth anything by itself; `EnvReward` is what the environment gave. None of them waits or asks anybody.
"""

import re
from collections.abc import Sequence

from windrow.errors import ConfigError
from windrow.rewards.protocol import Score
from windrow.trajectory import Trajectory

CUT_OFF = ("max_tokens", "context")


class EnvReward:
    """The sum of the environment's own rewards."""

    def score(self, trajectory: Trajectory) -> Score:
        return Score(float(sum(turn.reward for turn in trajectory.turns)))


class FormatReward:
    """1 if the last response has the form that was asked for, else 0.

    Either `tags`, each once, in this order, with something in it and nothing but space around them; or a `pattern` that
    the whole response must match.
    """

    def __init__(self, *, tags: Sequence[str] = ("think", "answer"), pattern: str | None = None) -> None:
        self._tags = tuple(tags)
        if pattern is None and (not self._tags or not all(re.fullmatch(r"\w+", tag) for tag in self._tags)):
            raise ConfigError(f"tags are {list(tags)!r}; name at least one, in letters, or give a pattern")
        try:
            self._pattern = None if pattern is None else re.compile(pattern, re.DOTALL)
        except re.error as error:
            raise ConfigError(f"pattern {pattern!r} is no regular expression: {error}") from error

    def score(self, trajectory: Trajectory) -> Score:
        text = trajectory.answer
        if self._pattern is not None:
            return Score(1.0) if self._pattern.fullmatch(text) else Score(0.0, note="does not match the pattern")
        wrong = _wrong_with_tags(text, self._tags)
        return Score(0.0, note=wrong) if wrong else Score(1.0)


class LengthReward:
    """0 up to `soft_tokens` sampled by the policy, from there down to -1 at `hard_tokens`.

    A response that was cut off counts as too long, however short it is, unless `cut_off` is false.
    """

    def __init__(self, *, soft_tokens: int = 256, hard_tokens: int = 512, cut_off: bool = True) -> None:
        if not 0 <= soft_tokens < hard_tokens:
            raise ConfigError(f"soft_tokens is {soft_tokens} and hard_tokens {hard_tokens}; 0 <= soft < hard")
        self._soft = soft_tokens
        self._hard = hard_tokens
        self._cut_off = cut_off

    def score(self, trajectory: Trajectory) -> Score:
        if self._cut_off and is_cut_off(trajectory):
            return Score(-1.0, note="cut off")
        tokens = trajectory.policy_tokens
        over = (tokens - self._soft) / (self._hard - self._soft)
        if over <= 0:
            return Score(0.0)
        return Score(-min(1.0, over), note=f"{tokens} tokens, {self._soft} are free")


def is_cut_off(trajectory: Trajectory) -> bool:
    """A limit on tokens ended the last response, or the episode."""
    return trajectory.ending in CUT_OFF or (bool(trajectory.turns) and trajectory.turns[-1].finish == "length")


def _wrong_with_tags(text: str, tags: Sequence[str]) -> str:
    """What is wrong with the form of a text; empty if nothing is."""
    rest = text
    for tag in tags:
        opening, closing = f"<{tag}>", f"</{tag}>"
        if text.count(opening) != 1 or text.count(closing) != 1:
            return f"not one {opening}…{closing}"
        before, _, rest = rest.partition(opening)
        inside, closed, rest = rest.partition(closing)
        if before.strip() or not closed:
            return f"something else where {opening} should begin"
        if not inside.strip():
            return f"nothing in {opening}…{closing}"
    return "something after the last tag" if rest.strip() else ""
