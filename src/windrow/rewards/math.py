r"""Whether a math answer is right.

Promises: 1 or 0. The right answer stands in the episode's `info["answer"]`; the policy's is found by `answers`. Where
the right answer is a number the policy's must be one too, worked out, and the two are compared exactly; nothing else is
computed. Formulas, sets, intervals and the like go to the library `math-verify`, after whatever could keep it busy for
ever has been refused. An answer that cannot be read is wrong; a right answer that cannot be read is a `RewardError`.

The library's own time limits need the main thread and are off. `score` is an ordinary function of a value that can be
pickled, so it can run in a process that is killed at its deadline; `isolation` says that it should.
"""

import logging
import re
from functools import lru_cache
from typing import Any

from windrow.envs.protocol import Isolation
from windrow.errors import RewardError
from windrow.rewards.answers import LONGEST, Answer, find_answer, tidy
from windrow.rewards.numbers import Number, are_equal, numbers_in, read_number
from windrow.rewards.protocol import Score
from windrow.trajectory import Trajectory

LONGEST_FORMULA = 200
MOST_DIGITS = 20
"""Of one number in a formula."""
MOST_POWER = 99
MOST_POWER_OF_MORE = 20
"""A power of something in brackets; it may be multiplied out."""
DEEPEST = 10
"""Brackets in brackets."""

_UNDONE = re.compile(r"\\(?:int|iint|oint|sum|prod|lim|binom|det|gcd|lcm|bmod|pmod)\b|!")
_POWER = re.compile(r"(?P<base>[)}\]])?\s*(?:\^|\*\*)\s*\{?\s*[-+]?\s*(?P<number>\d+)")
_TOWER = re.compile(r"(?:\^|\*\*)\s*(?:\{[^{}]*(?:\^|\*\*)|\{[^{}]*\{|\([^()]*(?:\^|\*\*)|[-+]?\w+\s*(?:\^|\*\*))")
_FORMULA = re.compile(r"[+*^<>\\]|\s[-/]\s|\b[xyznke]\b")
"""What words around a number do not have."""
_COMPARISON = re.compile(r"[<>!=]=|=[<>]|[≤≥≠]|\\[lgn]eq?\b")
"""What says of a number that the answer is another one, perhaps."""
_OR = re.compile(r"\bor\b|\\(?:lor|vee)\b")
_SEVERAL = re.compile(r"[,;](?!\d{3})|\band\b|\\(?:land|wedge)\b|\d\s+[A-Za-z]\s*$")
"""Between two `=`: what says that one answer ends and another begins."""
_MANY_BASES = re.compile(r"[)}\]]\s*(?:\^|\*\*)")


class MathReward:
    """1 if the answer is right, else 0."""

    def __init__(self, *, formulas: bool = True) -> None:
        self._formulas = formulas
        self.isolation: Isolation = "process" if formulas else "thread"  # a formula can take long, who knows why
        self.preload: tuple[str, ...] = ("math_verify",) if formulas else ()

    def score(self, trajectory: Trajectory) -> Score:
        right = tidy(right_answer(trajectory))
        response = trajectory.answer
        number = read_number(right)
        if number is not None:
            return _compare_numbers(right, number, response)
        return self._compare_formulas(right, find_answer(response))

    def _compare_formulas(self, right: str, said: Answer) -> Score:
        if not said.text:
            return Score(0.0, note="no answer")
        if _folded(said.text) == _folded(right):
            return Score(1.0)
        if not self._formulas:
            return _wrong(said.text, right)
        refused = why_refused(said.text, right)
        if refused:
            return Score(0.0, note=f"{said.text!r:.80} {refused}")
        return Score(1.0) if _verify(right, said.text) else _wrong(said.text, right)


def right_answer(trajectory: Trajectory) -> str:
    """What the environment says that the answer is."""
    answer = trajectory.info.get("answer")
    if isinstance(answer, bool) or not isinstance(answer, str | int | float) or not str(answer).strip():
        raise RewardError(
            f"{trajectory.attempt} of {trajectory.task.tag!r} has answer {answer!r:.60} in its info; "
            f"the environment must put the right one there, as text or a number"
        )
    return str(answer)


def why_refused(text: str, right: str) -> str:
    """Why an answer is not even looked at by the library; empty if it is."""
    if len(text) > LONGEST_FORMULA:
        return f"is longer than {LONGEST_FORMULA} characters"
    if re.search(rf"\d{{{MOST_DIGITS + 1},}}", text):
        return f"has a number of more than {MOST_DIGITS} digits"
    if set(_UNDONE.findall(text)) - set(_UNDONE.findall(right)):
        return "is not worked out"
    if re.search(r"(?:\d{3,}|[)}\]!])\s*!", text):
        return "has a factorial that is too large"
    if _deepest(text) > DEEPEST:
        return f"has more than {DEEPEST} brackets in each other"
    return _why_powers(text)


def _why_powers(text: str) -> str:
    if _TOWER.search(text):
        return "has a power of a power"
    if len(_MANY_BASES.findall(text)) > 4:
        return "has too many powers of brackets"
    for found in _POWER.finditer(text):
        if int(found["number"]) > (MOST_POWER_OF_MORE if found["base"] else MOST_POWER):
            return "has a power that is too large"
    return ""


def _compare_numbers(right: str, number: Number, response: str) -> Score:
    said = find_answer(response)
    found = _last_number(response) if said.where == "bare" else _one_number(said)
    if found is None:
        return Score(0.0, note=f"{said.text!r:.80} is not one number")
    return Score(1.0) if are_equal(number, found) else _wrong(said.text, right)


def _last_number(response: str) -> Number | None:
    found = [*numbers_in(tidy(response[-LONGEST:]))]
    return found[-1] if found else None


def _one_number(said: Answer) -> Number | None:
    """The number that an answer is; among words there must be just one, and in a box there are no words."""
    before, _, end = said.text.rpartition("=")
    end = end.strip()
    if _COMPARISON.search(said.text) or _OR.search(before) or _SEVERAL.search(before.partition("=")[2]):
        return None
    number = read_number(end)
    if number is not None or said.where == "boxed" or _FORMULA.search(end):
        return number
    found = [*numbers_in(end)]
    return found[0] if len(found) == 1 else None


def _wrong(said: str, right: str) -> Score:
    return Score(0.0, note=f"said {said!r:.80}, right is {right!r:.80}")


def _folded(text: str) -> str:
    """Text in which only what matters differs; a letter in brackets is a choice."""
    text = "".join(text.casefold().split())
    return text[1:-1] if re.fullmatch(r"\([a-z]\)", text) else text


def _deepest(text: str) -> int:
    depth = most = 0
    for letter in text:
        depth += (letter in "({[") - (letter in ")}]")
        most = max(most, depth)
    return most


def _verify(right: str, said: str) -> bool:
    from math_verify import verify

    gold = _parsed_right(right)
    return bool(verify(gold, _parse(said), timeout_seconds=None))


@lru_cache(maxsize=1024)
def _parsed_right(right: str) -> list[Any]:  # sympy has no common type for what it parses
    parsed = _parse(right)
    if not parsed:
        raise RewardError(f"the right answer {right!r:.80} cannot be read by math-verify; write it in LaTeX or as text")
    return parsed


def _parse(text: str) -> list[Any]:
    from math_verify import LatexExtractionConfig, parse

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its time limits are off, as they must be
    config = LatexExtractionConfig(boxed_match_priority=-1)
    parsed: list[Any] = parse(f"${text}$", [config], fallback_mode="no_fallback", parsing_timeout=None)
    return parsed
