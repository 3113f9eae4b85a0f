"""FrozenLake in words: Gymnasium's own ice, on random maps that can be crossed.

Promises: what happens on the ice is decided by Gymnasium's environment alone; every map has a way to the goal, and on
ice that is not slippery one within the step limit; the same task is the same episode for the same actions. The score is
1 for reaching the goal and 0 for anything else.

On slippery ice nobody can promise to arrive: there `solve` says what arrives most often.
"""

import math
from collections import deque
from collections.abc import Iterator
from copy import copy
from functools import cached_property, lru_cache
from random import Random
from typing import Annotated, Any, Literal

import numpy as np

from windrow.envs.drawing import draw
from windrow.envs.games import ASK_FOR_DIRECTION, DIRECTIONS, Course, Direction, direction, settled, settled_for_task
from windrow.envs.protocol import Step
from windrow.errors import ConfigError
from windrow.trajectory import Split, Task
from windrow.types import Meta, Value

NAME = "frozen_lake"

Place = tuple[int, int]
"""Row and column."""

WAYS: dict[Direction, Place] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
NUMBERS: dict[Direction, int] = {"left": 0, "down": 1, "right": 2, "up": 3}
"""What Gymnasium calls the directions."""

SIGNS = {"S": "ice", "F": "ice", "H": "hole", "G": "goal", None: "edge"}

NEAREST_GOAL = 2
"""A goal beside the start is found by saying anything."""
FEWEST_HOLES = 0.01
"""Between corners: with fewer nearly all maps are the same one, and there is nothing to hold out."""
THINNER = 0.9
"""After so many maps that cannot be crossed there are fewer holes in the next ones."""
TRIES = 20
REMEMBERED = 256
"""Maps that are kept for a while, as the attempts of a group play the same one."""
SWEEPS = 2_000
"""More than enough for the chances of the largest slippery lake to settle."""


class Lake(Value, frozen=True, kw_only=True):
    """What can be chosen."""

    size: Annotated[int, Meta(ge=3, le=12)] = 4
    """Rows and columns."""
    holes: Annotated[float, Meta(ge=0, le=0.6)] = 0.2
    """How likely a place is a hole; between corners at least 0.01, or all maps would be the same."""
    slippery: bool = False
    """Two of three steps go sideways, as in Gymnasium."""
    corners: bool = False
    """Start and goal in opposite corners, as in Gymnasium; else anywhere."""
    max_steps: Annotated[int, Meta(ge=4)] | None = None
    """None: three times the size, on slippery ice 25 times."""
    min_distance: Annotated[int, Meta(ge=1)] = NEAREST_GOAL
    """Steps to the goal at the very least, on a random map."""
    max_distance: Annotated[int, Meta(ge=1)] | None = None
    """And at most; None: as many as the step limit allows."""
    detours: bool = True
    """A random map may have no way to its goal on which every step leads nearer to it."""
    view: Literal["both", "grid", "words", "brief"] = "both"
    """The map as a picture, where things are in words, or in as few words as possible."""
    rules: bool = True
    """Begin with what the signs mean."""
    map: tuple[str, ...] = ()
    """Rows of S, F, H and G: this map instead of a random one."""

    def __post_init__(self) -> None:
        if self.map:
            _check(self.map, math.inf if self.slippery else self.steps)
            return
        least, most, across = self.min_distance, self.max_distance, 2 * self.size - 2
        if least > across:
            raise ConfigError(f"{NAME}.min_distance must be at most {across} at size {self.size}, got {least}")
        needed = across if self.corners else least
        words = f"{across}, the way between corners" if self.corners else f"min_distance, which is {least}"
        if most is not None and most < needed:
            raise ConfigError(f"{NAME}.max_distance must be at least {words}, got {most}")
        if self.farthest < needed:
            raise ConfigError(f"{NAME}.max_steps must be at least {words}, got {self.steps}")
        if self.corners and self.holes < FEWEST_HOLES:
            why = "or all maps are the same; give the one you want as map"
            raise ConfigError(f"{NAME}.holes must be at least {FEWEST_HOLES} between corners, got {self.holes}, {why}")

    @property
    def farthest(self) -> int:
        """The longest way to a goal."""
        longest = self.size**2 if self.slippery else self.steps
        return longest if self.max_distance is None else min(longest, self.max_distance)

    @property
    def steps(self) -> int:
        if self.max_steps is not None:
            return self.max_steps
        return max(self.size, len(self.map)) * (25 if self.slippery else 3)


class FrozenLakeEnv:
    """Walk over the ice to the goal; keywords are the fields of `Lake`, and so is a task's payload."""

    def __init__(self, **settings: object) -> None:
        self._lake = settled(Lake, NAME, settings)
        self._course = Course(NAME)
        self._map: tuple[str, ...] = ()
        self._ice: Any = None  # Gymnasium leaves its methods untyped
        self._at: Place = (0, 0)

    async def start(self, task: Task) -> str:
        self._lake = lake = settled_for_task(self._lake, NAME, task.payload)
        self._course.begin(lake.steps)
        self._map = lake.map or _drawn(lake, task.seed, task.split)
        self._ice = copy(_untouched(self._map, slippery=lake.slippery))
        state, _ = self._ice.reset(seed=task.seed % 2**63)
        self._at = self._place(int(state))
        return f"{self._rules()}\n{self._view()}" if lake.rules else self._view()

    async def step(self, action: str) -> Step:
        self._course.take()
        way = direction(action)
        if way is None:
            return self._step(ASK_FOR_DIRECTION)
        before = self._at
        state, reward, ended, _, _ = self._ice.step(NUMBERS[way])
        self._at = self._place(int(state))
        if ended:
            said = "you reached the goal" if reward else "you fell into a hole"
            return self._course.step(said, self._info, reward=float(reward), ended=True)
        return self._step(_went(way, before, self._at))

    async def close(self) -> None:
        if self._ice is not None:
            self._ice.close()

    def solve(self) -> str:
        """The next step of a shortest way; on slippery ice the one that arrives most often."""
        if self._lake.slippery:
            return self._surest[self._at]
        return min(self._open_ways(), key=lambda way: self._distances.get(_beside(self._at, way), len(self._map) ** 2))

    def wander(self, rng: Random) -> str:
        """Anywhere but over the edge."""
        return rng.choice(self._open_ways())

    def _place(self, state: int) -> Place:
        return divmod(state, len(self._map[0]))

    def _step(self, said: str) -> Step:
        seen = self._view() if self._lake.view == "brief" else f"{said}\n{self._view()}"
        return self._course.step(seen, self._info)

    @property
    def _info(self) -> dict[str, Any]:
        return {"problem": "\n".join(self._map)}

    @cached_property
    def _distances(self) -> dict[Place, int]:
        return _distances(self._map)

    @cached_property
    def _surest(self) -> dict[Place, Direction]:
        return {self._place(state): way for state, way in enumerate(_surest(self._ice.P))}

    def _open_ways(self) -> list[Direction]:
        return [way for way in DIRECTIONS if _sign(self._map, _beside(self._at, way)) is not None]

    def _rules(self) -> str:
        sides = "; the ice is slippery, you may slide to a side" if self._lake.slippery else ""
        return f"you are P on a frozen lake: go to G, . is ice, H is a hole you fall into{sides}; {ASK_FOR_DIRECTION}"

    def _view(self) -> str:
        parts = {"both": (self._picture, self._words), "grid": (self._picture,), "words": (self._words,)}
        return self._brief() if self._lake.view == "brief" else "\n".join(part() for part in parts[self._lake.view])

    def _picture(self) -> str:
        rows = [[*row.replace("S", ".").replace("F", ".")] for row in self._map]
        row, column = self._at
        rows[row][column] = "P"
        return "\n".join(map("".join, rows))

    def _words(self) -> str:
        (goal,) = _all(self._map, "G")
        around = ", ".join(f"{way} {SIGNS[_sign(self._map, _beside(self._at, way))]}" for way in DIRECTIONS)
        return f"you {_spell(self._at)} goal {_spell(goal)}\n{around}"

    def _brief(self) -> str:
        """Which ways lead nearer to the goal as the crow flies, and which into no hole."""
        (goal,) = _all(self._map, "G")
        beside = {way: _beside(self._at, way) for way in DIRECTIONS}
        nearer = [way for way, place in beside.items() if _apart(place, goal) < _apart(self._at, goal)]
        safe = [way for way, place in beside.items() if _sign(self._map, place) != "H"]
        return " ".join(["goal", *nearer, "safe", *safe])


def ice() -> Any:  # noqa: ANN401 -- a class whose methods have no types
    """Gymnasium's class, which does without the wrappers that `gymnasium.make` puts around it."""
    try:
        from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv as Ice
    except ImportError:
        raise ConfigError(f"{NAME} needs gymnasium; pip install 'windrow[envs]'") from None
    return Ice


@lru_cache(REMEMBERED)
def _untouched(rows: tuple[str, ...], *, slippery: bool) -> Any:  # noqa: ANN401 -- as above
    """Gymnasium's environment on a map, which nobody has played with."""
    return ice()(desc=[*rows], is_slippery=slippery)


@lru_cache(REMEMBERED)
def _drawn(lake: Lake, seed: int, split: Split) -> tuple[str, ...]:
    task = Task(ordinal=0, seed=seed, split=split)
    return draw(task, lambda rng: _random_map(lake, rng), "\n".join)


def _went(way: Direction, before: Place, now: Place) -> str:
    if now == before:
        return "you stay where you are"
    return f"you went {way}" if now == _beside(before, way) else "you slid aside"


def _random_map(lake: Lake, rng: Random) -> tuple[str, ...]:
    holes = lake.holes
    while True:
        for _ in range(TRIES):
            rows, start = _any_map(lake, holes, rng)
            if _suits(lake, rows, start):
                return rows
        holes *= THINNER


def _suits(lake: Lake, rows: tuple[str, ...], start: Place) -> bool:
    distance = _distances(rows).get(start, 0)
    (goal,) = _all(rows, "G")
    return lake.min_distance <= distance <= lake.farthest and (lake.detours or distance == _apart(start, goal))


def _any_map(lake: Lake, holes: float, rng: Random) -> tuple[tuple[str, ...], Place]:
    """A map and where it starts; there may be no way to its goal."""
    rows = [["H" if rng.random() < holes else "F" for _ in range(lake.size)] for _ in range(lake.size)]
    ends = (0, lake.size**2 - 1) if lake.corners else rng.sample(range(lake.size**2), 2)
    start, goal = (divmod(end, lake.size) for end in ends)
    rows[start[0]][start[1]] = "S"
    rows[goal[0]][goal[1]] = "G"
    return tuple(map("".join, rows)), start


def _distances(rows: tuple[str, ...]) -> dict[Place, int]:
    """Steps to the goal, from every place that has a way there."""
    (goal,) = _all(rows, "G")
    steps = {goal: 0}
    ahead = deque([goal])
    while ahead:
        place = ahead.popleft()
        for way in DIRECTIONS:
            beside = _beside(place, way)
            if beside not in steps and _sign(rows, beside) in ("S", "F"):
                steps[beside] = steps[place] + 1
                ahead.append(beside)
    return steps


def _surest(chances: dict[int, dict[int, list[tuple[float, int, float, bool]]]]) -> Iterator[Direction]:
    """For each state the direction that arrives most often; a little impatient, so that it does arrive."""
    patience = 0.999
    states = len(chances)
    moves = np.zeros((states, 4, states))
    gains = np.zeros((states, 4))
    for state, actions in chances.items():
        for action, outcomes in actions.items():
            for chance, after, reward, ended in outcomes:
                moves[state, action, after] += 0.0 if ended else chance
                gains[state, action] += chance * reward
    worth = np.zeros(states)
    for _ in range(SWEEPS):
        worth = (gains + patience * moves @ worth).max(axis=1)
    best = (gains + patience * moves @ worth).argmax(axis=1)
    names = {number: way for way, number in NUMBERS.items()}
    return (names[int(number)] for number in best)


def _check(rows: tuple[str, ...], steps: float) -> None:
    if len({len(row) for row in rows}) != 1 or set("".join(rows)) - set("SFHG"):
        raise ConfigError(f"{NAME}.map must be rows of equal length made of S, F, H and G, got {rows!r}")
    if any(len(_all(rows, sign)) != 1 for sign in "SG"):
        raise ConfigError(f"{NAME}.map must have one S and one G, got {rows!r}")
    if _distances(rows).get(_all(rows, "S")[0], math.inf) > steps:
        raise ConfigError(f"{NAME}.map must have a way from S to G in {steps} steps (max_steps), got {rows!r}")


def _all(rows: tuple[str, ...], sign: str) -> list[Place]:
    return [(at, column) for at, row in enumerate(rows) for column, here in enumerate(row) if here == sign]


def _sign(rows: tuple[str, ...], place: Place) -> str | None:
    """What is there; None beyond the edge."""
    row, column = place
    return rows[row][column] if 0 <= row < len(rows) and 0 <= column < len(rows[0]) else None


def _apart(one: Place, other: Place) -> int:
    """Steps between two places if all were ice."""
    return abs(one[0] - other[0]) + abs(one[1] - other[1])


def _beside(place: Place, way: Direction) -> Place:
    return place[0] + WAYS[way][0], place[1] + WAYS[way][1]


def _spell(place: Place) -> str:
    return f"{place[0]},{place[1]}"
