"""Sokoban in words: push every box onto a target, in rooms made at random that can always be solved.

Promises: every room can be solved within the step limit; the same task is the same episode for the same actions. The
score is 1 when all boxes stand on targets and 0 otherwise. A box that can never be moved again does not end the
episode: noticing it is part of the game.
"""

from collections.abc import Iterator
from itertools import repeat
from random import Random
from typing import Annotated, Any, Literal

from windrow.envs.drawing import draw
from windrow.envs.games import ASK_FOR_DIRECTION, DIRECTIONS, Course, Direction, direction, settled, settled_for_task
from windrow.envs.protocol import Step
from windrow.envs.sokoban.making import made
from windrow.envs.sokoban.planning import MOST_BOXES, plan
from windrow.envs.sokoban.room import LEGEND, Position, Room, Scene, bits, drawn, moved, read
from windrow.errors import ConfigError
from windrow.trajectory import Task
from windrow.types import Meta, Value

NAME = "sokoban"

STEPS_PER_SIZE = 4


class Rooms(Value, frozen=True, kw_only=True):
    """What can be chosen."""

    size: Annotated[int, Meta(ge=5, le=10)] = 6
    """Rows and columns, with the wall around them."""
    boxes: Annotated[int, Meta(ge=1, le=MOST_BOXES)] = 1
    walls: Annotated[float, Meta(ge=0, le=0.3)] = 0.1
    """How likely a place inside is a wall."""
    max_steps: Annotated[int, Meta(ge=8)] | None = None
    """None: four times the size for every box."""
    max_plan: Annotated[int, Meta(ge=1)] | None = None
    """Steps to the end at most, in a random room; None: as many as the step limit allows."""
    view: Literal["both", "grid", "words", "brief"] = "both"
    """The room as a picture, where things are in words, or in as few words as possible."""
    rules: bool = True
    """Begin with what the signs mean."""
    map: tuple[str, ...] = ()
    """A room in the usual signs, instead of a random one."""

    def __post_init__(self) -> None:
        if self.boxes > self.size - 3:
            raise ConfigError(f"{NAME}.boxes must be at most {self.size - 3} at size {self.size}, got {self.boxes}")
        if self.view == "brief" and max(self.boxes, "".join(self.map).count("$")) > 1:
            raise ConfigError(f"{NAME}.view brief tells of one box, got {self.boxes} boxes; use words")
        if self.map:
            _check(read(self.map), self)

    @property
    def longest_plan(self) -> int:
        return self.steps if self.max_plan is None else min(self.steps, self.max_plan)

    @property
    def steps(self) -> int:
        if self.max_steps is not None:
            return self.max_steps
        return STEPS_PER_SIZE * max(self.size, len(self.map)) * max(self.boxes, "".join(self.map).count("$"))


class SokobanEnv:
    """Push the boxes onto the targets; keywords are the fields of `Rooms`, and so is a task's payload."""

    def __init__(self, **settings: object) -> None:
        self._rooms = settled(Rooms, NAME, settings)
        self._course = Course(NAME)
        self._room = Room(width=0, floor=0, targets=0)
        self._position = Position(0, 0)
        self._plan: dict[Position, Direction] = {}  # what to do next, along the last plan that was made
        self._info: dict[str, Any] = {}

    async def start(self, task: Task) -> str:
        self._rooms = rooms = settled_for_task(self._rooms, NAME, task.payload)
        self._course.begin(rooms.steps)
        scene = read(rooms.map) if rooms.map else draw(task, lambda rng: _made(rooms, rng), _key)
        self._room, self._position = scene.room, scene.position
        self._info = {"problem": _key(scene)}
        return f"{_rules()}\n{self._view()}" if rooms.rules else self._view()

    async def step(self, action: str) -> Step:
        self._course.take()
        way = direction(action)
        if way is None:
            return self._step(ASK_FOR_DIRECTION)
        before, self._position = self._position, moved(self._room, self._position, way)
        if self._position.is_solved(self._room):
            return self._course.step("every box is on a target", self._info, reward=1.0, ended=True)
        return self._step(_went(way, before, self._position))

    async def close(self) -> None:
        pass

    def solve(self) -> str:
        """The next step of a plan with the fewest pushes; any step once there is none."""
        if self._position not in self._plan:
            self._plan = self._planned()
        return self._plan.get(self._position) or self._open_ways()[0]

    def wander(self, rng: Random) -> str:
        """Any step that changes something."""
        return rng.choice(self._open_ways())

    def _step(self, said: str) -> Step:
        seen = self._view() if self._rooms.view == "brief" else f"{said}\n{self._view()}"
        return self._course.step(seen, self._info)

    def _planned(self) -> dict[Position, Direction]:
        position, ways = self._position, dict[Position, Direction]()
        for way in plan(self._room, position) or ():
            ways[position] = way
            position = moved(self._room, position, way)
        return ways

    def _open_ways(self) -> list[Direction]:
        """Where a step changes something; everywhere if the player is walled in by boxes."""
        open_ways = [way for way in DIRECTIONS if moved(self._room, self._position, way) != self._position]
        return open_ways or [*DIRECTIONS]

    def _view(self) -> str:
        parts = {
            "both": (self._picture, self._words),
            "grid": (self._picture,),
            "words": (self._words,),
            "brief": (self._brief,),
        }
        return "\n".join(part() for part in parts[self._rooms.view])

    def _picture(self) -> str:
        return drawn(self._room, self._position)

    def _words(self) -> str:
        boxes, targets = self._spell(self._position.boxes), self._spell(self._room.targets)
        around = ", ".join(f"{way} {self._beside(way)}" for way in DIRECTIONS)
        return f"you {self._spell(1 << self._position.player)} box {boxes} target {targets}\n{around}"

    def _brief(self) -> str:
        """The steps to the box and from it to the target as if nothing were in the way, and where walls are."""
        box, target = (next(bits(places)) for places in (self._position.boxes, self._room.targets))
        walls = [way for way in DIRECTIONS if self._beside(way) == "wall"]
        to_box, to_target = self._way(self._position.player, box), self._way(box, target)
        return " ".join(["box", *to_box, "target", *to_target, "wall", *walls])

    def _way(self, start: int, end: int) -> Iterator[Direction]:
        (row, column), (to_row, to_column) = (divmod(place, self._room.width) for place in (start, end))
        yield from repeat("up" if to_row < row else "down", abs(to_row - row))
        yield from repeat("left" if to_column < column else "right", abs(to_column - column))

    def _spell(self, places: int) -> str:
        return " ".join(
            f"{row},{column}" for row, column in (divmod(place, self._room.width) for place in bits(places))
        )

    def _beside(self, way: Direction) -> str:
        place = self._position.player + self._room.offset(way)
        if not self._room.floor >> place & 1:
            return "wall"
        if self._position.boxes >> place & 1:
            return "box"
        return "target" if self._room.targets >> place & 1 else "floor"


def _made(rooms: Rooms, rng: Random) -> Scene:
    return made(rooms.size, rooms.boxes, rooms.walls, rooms.longest_plan, rng)


def _key(scene: Scene) -> str:
    return drawn(scene.room, scene.position)


def _check(scene: Scene, rooms: Rooms) -> None:
    if scene.position.boxes.bit_count() > MOST_BOXES:
        raise ConfigError(f"{NAME}.map must have at most {MOST_BOXES} boxes, got {rooms.map!r}")
    moves = plan(scene.room, scene.position)
    if not moves or len(moves) > rooms.steps:
        raise ConfigError(f"{NAME}.map must be solvable in 1 to {rooms.steps} steps (max_steps), got {rooms.map!r}")


def _rules() -> str:
    return f"push every box onto a target, you cannot pull: {LEGEND}; {ASK_FOR_DIRECTION}"


def _went(way: Direction, before: Position, now: Position) -> str:
    if now == before:
        return "you cannot go there"
    return f"you went {way}" if now.boxes == before.boxes else f"you pushed a box {way}"
