"""A room with boxes: what it looks like and what a step in it changes.

Sets of places are numbers, one bit for each place, row by row; a room is walled all around, so a step never leaves it.
Positions never change; a step gives another one.
"""

from collections.abc import Iterator

from windrow.envs.games import DIRECTIONS, Direction
from windrow.errors import ConfigError
from windrow.types import Value

LEGEND = "# wall, _ floor, $ box, . target, * box on a target, @ you, + you on a target"

_FLOOR, _PLAYER, _BOX, _TARGET = " -_@$.+*", "@+", "$*", ".+*"


class Room(Value, frozen=True, kw_only=True):
    """What never moves."""

    width: int
    floor: int
    """All and only places that are no wall."""
    targets: int

    def offset(self, way: Direction) -> int:
        """How far away the next place in a direction is."""
        return {"up": -self.width, "down": self.width, "left": -1, "right": 1}[way]


class Position(Value, frozen=True):
    """What moves."""

    player: int
    """Its place."""
    boxes: int

    def is_solved(self, room: Room) -> bool:
        return self.boxes == room.targets


class Scene(Value, frozen=True):
    """A room and what stands in it."""

    room: Room
    position: Position


def bits(places: int) -> Iterator[int]:
    """The places of a set, in order."""
    while places:
        lowest = places & -places
        yield lowest.bit_length() - 1
        places ^= lowest


def moved(room: Room, position: Position, way: Direction) -> Position:
    """After a step; the same if a wall or a box that cannot be pushed is in the way."""
    offset = room.offset(way)
    to = position.player + offset
    if position.boxes >> to & 1:
        beyond = to + offset
        if not (room.floor & ~position.boxes) >> beyond & 1:
            return position
        return Position(to, position.boxes ^ (1 << to | 1 << beyond))
    return Position(to, position.boxes) if room.floor >> to & 1 else position


def reach(room: Room, position: Position) -> int:
    """All and only places that the player can walk to."""
    return spread(1 << position.player, room.floor & ~position.boxes, room.width)


def spread(seen: int, free: int, width: int) -> int:
    """A set grown over all free places that are connected to it."""
    while True:
        grown = (seen | seen << 1 | seen >> 1 | seen << width | seen >> width) & free
        if grown == seen:
            return seen
        seen = grown


def walk(room: Room, position: Position, to: int) -> list[Direction]:
    """A shortest way to a place that can be reached without a push."""
    free = room.floor & ~position.boxes
    rings = [1 << to]
    while not rings[-1] >> position.player & 1:
        last = rings[-1]
        rings.append((last | last << 1 | last >> 1 | last << room.width | last >> room.width) & free)
    at, way = position.player, list[Direction]()
    for ring in reversed(rings[:-1]):
        step = next(each for each in DIRECTIONS if ring >> (at + room.offset(each)) & 1)
        at += room.offset(step)
        way.append(step)
    return way


def drawn(room: Room, position: Position) -> str:
    """The picture, one line per row."""
    height = (room.floor.bit_length() - 1) // room.width + 2  # to the wall below the last floor
    signs = "".join(_sign(room, position, place) for place in range(height * room.width))
    return "\n".join(signs[begin : begin + room.width] for begin in range(0, len(signs), room.width))


def _sign(room: Room, position: Position, place: int) -> str:
    if not room.floor >> place & 1:
        return "#"
    target = room.targets >> place & 1
    if place == position.player:
        return "+" if target else "@"
    if position.boxes >> place & 1:
        return "*" if target else "$"
    return "." if target else "_"


def read(picture: tuple[str, ...]) -> Scene:
    """The scene of a picture in the usual signs; blanks and `-` are floor too."""
    width = max(map(len, picture), default=0)
    places = {row * width + column: sign for row, line in enumerate(picture) for column, sign in enumerate(line)}
    unknown = set(places.values()) - set(_FLOOR) - {"#"}
    players = [place for place, sign in places.items() if sign in _PLAYER]
    if unknown or len(players) != 1:
        raise ConfigError(f"sokoban.map must have one player and be made of {LEGEND}, got {picture!r}")
    floor, boxes, targets = (_set(places, signs) for signs in (_FLOOR, _BOX, _TARGET))
    room = Room(width=width, floor=_inside(floor, width, players[0]), targets=targets)
    if any(_is_border(place, width, len(picture)) for place in bits(room.floor)):
        raise ConfigError(f"sokoban.map must have a wall all around, got {picture!r}")
    if not boxes or boxes.bit_count() != targets.bit_count() or (boxes | targets) & ~room.floor:
        raise ConfigError(f"sokoban.map must have as many boxes as targets, all within reach, got {picture!r}")
    return Scene(room, Position(players[0], boxes))


def _set(places: dict[int, str], signs: str) -> int:
    return sum(1 << place for place, sign in places.items() if sign in signs)


def _inside(floor: int, width: int, player: int) -> int:
    """The part of the floor that the player could ever stand on."""
    return spread(1 << player, floor, width)


def _is_border(place: int, width: int, height: int) -> bool:
    row, column = divmod(place, width)
    return row in (0, height - 1) or column in (0, width - 1)
