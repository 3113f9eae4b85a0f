"""How to push every box onto a target: a search with the fewest pushes (A* over pushes).

Promises: a plan is right; it has the fewest pushes, not always the fewest steps. None means that there is no plan, or
that the search gave up after `patience` positions, which small rooms never need.
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count, permutations
from operator import getitem

from windrow.envs.games import DIRECTIONS, Direction
from windrow.envs.sokoban.room import Position, Room, bits, reach, walk

PATIENCE = 100_000
LOST = 10_000
"""More pushes than any plan has."""
MOST_BOXES = 4
ORDERS = [[*permutations(range(boxes))] for boxes in range(MOST_BOXES + 1)]
"""Which box goes to which target; few enough boxes to try all."""

Pushes = list[dict[int, int]]
"""For every target, how many pushes a box is away from it, at each place from which it can get there."""

Trail = tuple[Position, "Trail | None"]
"""A position and how it came about: the positions after each push, the latest first."""


def plan(room: Room, start: Position, patience: int = PATIENCE) -> list[Direction] | None:
    """The steps from here to the end."""
    pushes = distances(room)
    least = at_least(start, pushes)
    ahead: list[tuple[int, int, int, Trail]] = [] if least is None else [(least, 0, 0, (start, None))]
    seen: set[tuple[int, int]] = set()  # all and only (boxes, first place in reach) that were looked at
    ticks = count(1)
    while ahead and len(seen) < patience:
        _, minus_done, _, trail = heappop(ahead)
        position = trail[0]
        if position.is_solved(room):
            return _steps(room, trail)
        around = reach(room, position)
        known = (position.boxes, around & -around)
        if known in seen:
            continue
        seen.add(known)
        for after in _pushed(room, position, around):
            least = at_least(after, pushes)
            if least is not None:
                heappush(ahead, (1 - minus_done + least, minus_done - 1, next(ticks), (after, trail)))
    return None


def distances(room: Room) -> Pushes:
    """Pushes with no other box around, found by pulling a box away from each target."""
    return [_distances(room, target) for target in bits(room.targets)]


def _distances(room: Room, target: int) -> dict[int, int]:
    steps = {target: 0}
    ahead = [target]
    for place in ahead:  # it grows while it is read
        for way in DIRECTIONS:
            offset = room.offset(way)
            to = place + offset
            if to not in steps and room.floor >> to & 1 and room.floor >> (to + offset) & 1:
                steps[to] = steps[place] + 1
                ahead.append(to)
    return steps


def at_least(position: Position, pushes: Pushes) -> int | None:
    """How many pushes are still needed at the very least, each box to a target of its own; None if that cannot be."""
    boxes = [*bits(position.boxes)]
    costs = [[to.get(box, LOST) for box in boxes] for to in pushes]
    least = min(sum(map(getitem, costs, order)) for order in ORDERS[len(boxes)])
    return least if least < LOST else None


def _pushed(room: Room, position: Position, around: int) -> Iterator[Position]:
    """Every position that is one push away."""
    free = room.floor & ~position.boxes
    for box in bits(position.boxes):
        for way in DIRECTIONS:
            offset = room.offset(way)
            if around >> (box - offset) & 1 and free >> (box + offset) & 1:
                yield Position(box, position.boxes ^ (1 << box | 1 << (box + offset)))


def _steps(room: Room, trail: Trail) -> list[Direction]:
    """The walks and pushes that lead along a trail."""
    after, earlier = trail
    if earlier is None:
        return []
    before = earlier[0]
    pushed_to = next(bits(after.boxes & ~before.boxes))
    way = next(each for each in DIRECTIONS if after.player + room.offset(each) == pushed_to)
    return [*_steps(room, earlier), *walk(room, before, after.player - room.offset(way)), way]
