"""Rooms from chance that can always be solved, because they are played backwards from their end.

The boxes begin on the targets and are pulled away at random; whatever was pulled can be pushed back. A room whose plan
is longer than the episode may be is thrown away.
"""

from collections.abc import Iterator
from random import Random

from windrow.envs.games import DIRECTIONS
from windrow.envs.sokoban.planning import plan
from windrow.envs.sokoban.room import Position, Room, Scene, bits, reach, spread
from windrow.errors import EnvError

PULLS_PER_BOX = (4, 24)
"""How often boxes are pulled, at random between these."""
PATIENCE = 500
"""A room that takes longer to plan is thrown away."""
TRIES = 2_000


def made(size: int, boxes: int, walls: float, steps: int, rng: Random) -> Scene:
    """A scene that can be solved within so many steps; no box stands on a target."""
    for _ in range(TRIES):
        room = _room(size, boxes, walls, rng)
        if room is None:
            continue
        position = _pulled_away(room, boxes, rng)
        if position.boxes & room.targets:
            continue
        moves = plan(room, position, PATIENCE)
        if moves is not None and len(moves) <= steps:
            return Scene(room, position)
    raise EnvError(f"no room of size {size} for {boxes} boxes in {TRIES} tries; take fewer boxes or walls, more steps")


def _room(size: int, boxes: int, walls: float, rng: Random) -> Room | None:
    """A room with its targets; None if there is too little floor for the boxes to move."""
    inner = [row * size + column for row in range(1, size - 1) for column in range(1, size - 1)]
    free = sum(1 << place for place in inner if rng.random() >= walls)
    floor = _largest_part(free, size)
    if floor.bit_count() < 2 * boxes + 3:
        return None
    targets = sum(1 << place for place in rng.sample([*bits(floor)], boxes))
    return Room(width=size, floor=floor, targets=targets)


def _largest_part(free: int, width: int) -> int:
    largest = 0
    while free:
        part = spread(free & -free, free, width)
        largest = max(largest, part, key=int.bit_count)
        free &= ~part
    return largest


def _pulled_away(room: Room, boxes: int, rng: Random) -> Position:
    """A walk backwards from the end."""
    position = Position(_any(room.floor & ~room.targets, rng), room.targets)
    least, most = PULLS_PER_BOX
    for _ in range(rng.randint(least * boxes, most * boxes)):
        pulls = [*_pulled(room, position)]
        if not pulls:
            break
        position = rng.choice(pulls)
    return Position(_any(reach(room, position), rng), position.boxes)


def _pulled(room: Room, position: Position) -> Iterator[Position]:
    """Every position that is one pull away."""
    around = reach(room, position)
    for box in bits(position.boxes):
        for way in DIRECTIONS:
            offset = room.offset(way)
            if around >> (box + offset) & 1 and around >> (box + 2 * offset) & 1:
                yield Position(box + 2 * offset, position.boxes ^ (1 << box | 1 << (box + offset)))


def _any(places: int, rng: Random) -> int:
    return rng.choice([*bits(places)])
