"""What the environments with one question and one answer share.

Promises: it asks once and is over with the first answer; it gives no reward of its own, because whether the answer is
right is for a reward to say (`windrow.rewards`), which finds all it needs in `info`. The same task asks the same
question in any process. A task's payload may set the environment's settings for itself, or bring a whole question
from a dataset; then nothing is drawn. With levels each task draws which of several settings are its own.
"""

from collections.abc import Mapping, Sequence
from math import inf
from random import Random
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from windrow.envs.drawing import draw
from windrow.envs.protocol import Observation, Step
from windrow.errors import ConfigError, EnvError
from windrow.nearest import did_you_mean
from windrow.trajectory import Task
from windrow.types import Value

S = TypeVar("S", bound=Value)

QUESTION = "question"
"""The key of a payload that brings its own question."""
WEIGHT = "weight"
"""The key of a level that says how often it comes up."""
Levels = Sequence[Mapping[str, Any]]
"""Settings that differ from task to task, each with a weight: `[{"weight": 9, "steps": 1}, {"steps": 2}]`."""
MARK = "####"
"""Datasets that show the working put the answer behind this."""


class Question(Value, frozen=True, kw_only=True, gc=True):
    """One question, and all that is known about it."""

    text: str
    """What the policy sees."""
    key: str
    """What makes two questions the same problem."""
    solution: str | None
    """A full answer that gets full marks; None if nobody knows one."""
    info: Mapping[str, Any]  # what a reward needs, and nothing that cannot be written down


class Level(Value, Generic[S], frozen=True):
    """Settings that some of the tasks have."""

    settings: S
    weight: float


class QuestionEnv(Generic[S]):
    """Asks once, listens once. A kind of question has settings, makes one up, reads one from a payload and guesses."""

    Settings: ClassVar[type[Value]]
    """How its questions are drawn; one per kind."""

    def __init__(self, settings: S, levels: Levels = ()) -> None:
        self._settings = settings
        self._levels = [leveled(settings, level) for level in levels]
        self._asked: Question | None = None
        self._over = False

    def make(self, rng: Random, settings: S) -> Question:
        """Make a question up."""
        raise NotImplementedError

    def given(self, payload: Mapping[str, Any]) -> Question:
        """Read a question that a task brings."""
        raise NotImplementedError

    async def start(self, task: Task) -> Observation:
        if self._asked is not None:
            raise EnvError("it has been started before; make another one for each episode")
        self._asked = self._pose(task)
        return self._asked.text

    async def step(self, action: str) -> Step:  # noqa: ARG002 -- rewards read the answer in the trajectory
        asked = self._current()
        if self._over:
            raise EnvError("its one question is answered; make another one for each episode")
        self._over = True
        return Step(terminated=True, info={**asked.info, "problem": asked.key})

    async def close(self) -> None:
        pass

    def solve(self) -> str:
        """An answer that gets full marks."""
        solution = self._current().solution
        if solution is None:
            raise EnvError("the task brought its own question and no solution to it, so nobody can show one")
        return solution

    def _current(self) -> Question:
        if self._asked is None:
            raise EnvError("it asks nothing yet; start it first")
        return self._asked

    def _pose(self, task: Task) -> Question:
        payload = as_mapping(task.payload)
        if QUESTION in payload:
            return self.given(payload)
        settings = self._leveled(task)
        settings = with_changes(settings, payload) if payload else settings
        return draw(task, lambda rng: self.make(rng, settings), lambda question: question.key)

    def _leveled(self, task: Task) -> S:
        """The settings of a task's level."""
        if not self._levels:
            return self._settings
        rng = Random(f"level {task.seed}")
        return rng.choices([level.settings for level in self._levels], [level.weight for level in self._levels])[0]


def leveled(settings: S, level: Mapping[str, Any]) -> Level[S]:
    """Settings with those of a level, for the constructor of an environment."""
    changes = dict(level)
    weight = changes.pop(WEIGHT, 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < inf:
        raise ConfigError(f"the weight of a level must be a number above 0, got {weight!r:.60}")
    try:
        return Level(with_changes(settings, changes), weight)
    except EnvError as error:
        raise ConfigError(str(error).replace("the task's payload", "a level")) from error


def settled(kind: type[S], **fields: object) -> S:
    """Settings that can work, every one of its type; for the constructor of an environment."""
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{kind.__name__}: {error}") from error


def with_changes(settings: S, changes: Mapping[str, Any]) -> S:
    """Settings with those of a task's payload; raises EnvError, because one bad task is no reason to end a run."""
    known = settings.__struct_fields__
    for name in changes:
        if name not in known:
            raise EnvError(f"unknown setting {name!r} in the task's payload{did_you_mean(name, known)}")
    try:
        return settled(type(settings), **msgspec.structs.asdict(settings) | dict(changes))
    except ConfigError as error:
        raise EnvError(f"the task's payload: {error}") from error


def as_mapping(payload: object) -> Mapping[str, Any]:
    """The payload of a task, if it is one that a question can come from."""
    if payload is None:
        return {}
    if not isinstance(payload, Mapping) or not all(isinstance(key, str) for key in payload):
        raise EnvError(f"the task's payload is {payload!r:.60}; give a mapping with a question, or with settings")
    return payload


def math_given(payload: Mapping[str, Any]) -> Question:
    """A question of a dataset with an answer that `MathReward` can compare."""
    question, answer = text_of(payload, QUESTION), payload.get("answer")
    short = str(answer).rpartition(MARK)[2].strip()
    if isinstance(answer, bool) or not isinstance(answer, str | int | float) or not short:
        raise EnvError(f"the answer to {question!r:.60} is {answer!r:.60}; give text or a number under 'answer'")
    return Question(text=question, key=question, solution=f"answer: {short}", info={"answer": short})


def text_of(payload: Mapping[str, Any], key: str) -> str:
    """Some text of a payload."""
    text = payload.get(key)
    if not isinstance(text, str) or not text.strip():
        raise EnvError(f"{key!r} of the task's payload is {text!r:.60}; give text that is not empty")
    return text


def known_only(what: str, chosen: Sequence[str], known: Sequence[str]) -> None:
    """Refuse an empty choice and unknown members of one."""
    if not chosen:
        raise ConfigError(f"{what} are none; choose from {', '.join(known)}")
    for name in chosen:
        if name not in known:
            raise ConfigError(f"unknown {name!r} among {what}{did_you_mean(name, known)}")
