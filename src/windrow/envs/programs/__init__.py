"""Small Python programs to be written, checked by tests that the policy does not see.

Promises: a function is asked for in words, with an example or two; the tests are others. Every step that is named
matters, and the tests have more than one result, so a constant is never right. Two programs that do the same are the
same problem, however they are said. Nothing is executed here: `CodeReward` runs what the policy wrote, in a sandbox.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from random import Random
from typing import Annotated, Any

from windrow.envs.programs.steps import ENDS, STEPS, Chosen, Kind, Part, run_all
from windrow.envs.questions import QUESTION, Levels, Question, QuestionEnv, known_only, settled, text_of
from windrow.errors import ConfigError, EnvError
from windrow.types import Meta, Value, to_json

KINDS: tuple[Kind, ...] = ("list", "text", "number")
USUAL: tuple[Kind, ...] = ("list", "text")
"""Numbers are for beginners: whoever wants them asks for them."""
ENTRY = {"list": "f(xs)", "text": "f(s)", "number": "f(x)"}
TAKES = {"list": "It takes a list of whole numbers", "text": "It takes a text", "number": "It takes a whole number"}
TRIES = 1000
PROBES = 24
"""Inputs by which programs are told apart."""
ALPHABET = "abeno tbanet"
MANY_RESULTS = 3
"""The tests of a program have at least so many different results; two where there are only two."""


class Programs(Value, frozen=True, kw_only=True):
    """Which programs are asked for."""

    kinds: tuple[str, ...] = USUAL
    steps: Annotated[int, Meta(ge=1, le=6)] = 2
    """Steps before the end."""
    tests: Annotated[int, Meta(ge=2, le=64)] = 8
    """Hidden ones."""
    examples: Annotated[int, Meta(ge=0, le=4)] = 1
    """Shown ones, which are no tests."""

    def __post_init__(self) -> None:
        known_only("kinds", self.kinds, KINDS)


class ProgramEnv(QuestionEnv[Programs]):
    """One function to be written."""

    Settings = Programs

    def __init__(
        self,
        *,
        kinds: Sequence[str] = USUAL,
        steps: int = 2,
        tests: int = 8,
        examples: int = 1,
        levels: Levels = (),
    ) -> None:
        super().__init__(settled(Programs, kinds=tuple(kinds), steps=steps, tests=tests, examples=examples), levels)

    def make(self, rng: Random, settings: Programs) -> Question:
        for _ in range(TRIES):
            kind = _kind(rng, settings)
            parts = _parts(rng, kind, settings.steps)
            key = _behaviour(kind, parts)
            question = _asked(kind, parts, key, settings) if _each_matters(kind, parts, key) else None
            if question is not None:
                return question
        raise ConfigError(
            f"no program in {TRIES} draws in which every step matters; ask for fewer steps than {settings}"
        )

    def given(self, payload: Mapping[str, Any]) -> Question:
        question, entry = text_of(payload, QUESTION), text_of(payload, "entry")
        tests, solution = payload.get("tests"), payload.get("solution")
        if not isinstance(tests, list) or not tests or not all(map(_is_test, tests)):
            raise EnvError(f"tests of {question!r:.60} are {tests!r:.60}; give [{{'args': […], 'expected': …}}, …]")
        if not isinstance(solution, str | None):
            raise EnvError(f"the solution of {question!r:.60} is {solution!r:.60}; give Python text, or leave it out")
        return Question(text=question, key=question, solution=solution, info={"entry": entry, "tests": tests})

    def wander(self, rng: Random) -> str:
        """Some program of the sort that is asked for."""
        rng = Random(rng.getrandbits(64))  # not the draws that made the question, should it come from the same seed
        kind = _kind(rng, self._settings)
        return written(kind, _parts(rng, kind, self._settings.steps))


def written(kind: Kind, parts: Sequence[Chosen]) -> str:
    """A program as Python, between the marks that models put around it."""
    head, variable = ENTRY[kind], ENTRY[kind][2:-1]
    lines = [f"    {variable} = {part.code(variable)}" for part in parts[:-1]]
    return "\n".join(["```python", f"def {head}:", *lines, f"    return {parts[-1].code(variable)}", "```"])


def _asked(kind: Kind, parts: Sequence[Chosen], key: str, settings: Programs) -> Question | None:
    """A program as a question; None if its tests would not tell it from a constant."""
    rng = Random(key)  # the same problem has the same tests
    inputs = [_empty(kind), *(_input(rng, kind) for _ in range(settings.tests - 1))]
    tests = [{"args": [value], "expected": run_all(parts, value)} for value in inputs]
    if len({to_json(test["expected"]) for test in tests}) < min(MANY_RESULTS, settings.tests):
        return None
    examples = _examples(rng, kind, inputs, settings.examples)
    shown = "".join(f"\nf({value!r}) gives {run_all(parts, value)!r}" for value in examples)
    doing = ", ".join([TAKES[kind], *(part.words() for part in parts[:-1])])
    text = f"Write a Python function {ENTRY[kind]}. {doing} and {parts[-1].words()}.{shown}"
    return Question(text=text, key=key, solution=written(kind, parts), info={"entry": "f", "tests": tests})


def _each_matters(kind: Kind, parts: Sequence[Chosen], key: str) -> bool:
    """Without any one of its steps, or without all, a program would do something else."""
    less = [[*parts[:i], *parts[i + 1 :]] for i in range(len(parts) - 1)]
    return all(_behaviour(kind, some) != key for some in [*less, parts[-1:]])


def _examples(rng: Random, kind: Kind, hidden: Sequence[Any], count: int) -> list[Any]:
    """Inputs that are none of the hidden ones."""
    found: list[Any] = []
    while len(found) < count:
        value = _input(rng, kind)
        if value not in hidden and value not in found:
            found.append(value)
    return found


def _behaviour(kind: Kind, parts: Sequence[Chosen]) -> str:
    """What a program does, in short: the same for all that do the same."""
    results = [run_all(parts, value) for value in _probes(kind)]
    return f"{kind} {blake2b(to_json(results), digest_size=12).hexdigest()}"


@lru_cache
def _probes(kind: Kind) -> tuple[Any, ...]:
    """The same inputs for all."""
    rng = Random(kind)
    return tuple(_input(rng, kind) for _ in range(PROBES))


def _kind(rng: Random, settings: Programs) -> Kind:
    chosen = rng.choice(settings.kinds)
    return next(kind for kind in KINDS if kind == chosen)


def _parts(rng: Random, kind: Kind, steps: int) -> list[Chosen]:
    parts = [*rng.sample(STEPS[kind], steps), rng.choice(ENDS[kind])]
    return [_chosen(rng, part) for part in parts]


def _chosen(rng: Random, part: Part) -> Chosen:
    return Chosen(part, rng.choice(part.choices))


def _empty(kind: Kind) -> Any:  # noqa: ANN401 -- a list, a text or a number
    return {"list": [], "text": "", "number": 0}[kind]


def _input(rng: Random, kind: Kind) -> Any:  # noqa: ANN401 -- as above
    if kind == "number":
        return rng.randint(-20, 40)
    length = rng.randint(1, 8)
    if kind == "text":
        return "".join(rng.choice(ALPHABET) for _ in range(length)).strip() or "no"
    return [rng.randint(-9, 20) for _ in range(length)]


def _is_test(test: object) -> bool:
    return isinstance(test, dict) and isinstance(test.get("args"), list) and "expected" in test
