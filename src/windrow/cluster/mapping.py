"""Which devices a role has: what people write, and what the devices of all roles make together.

Promises: what is written is read, never evaluated; a text costs time in proportion to its length and to the devices
that it names, of which there is a limit. A mapping is a tuple of different devices, in the order in which they were
named. What cannot be read is refused by name, with the forms that can.

Whether a machine has these devices is not known here.
"""

import ast
import re
import warnings
from collections.abc import Sequence
from typing import Literal, assert_never

from windrow.errors import ConfigError
from windrow.types import Value

LARGEST_DEVICE = 99_999
"""The highest id; no cluster that one scheduler serves is larger, and a slip of the finger costs no memory."""
LONGEST_TEXT = 4_000
"""Characters of a mapping that is read; longer lists are written as ranges."""
LONGEST_ECHO = 60
"""Characters of a mapping that an error repeats."""

FORMS = "write 0-3, 0-3,6, [0, 1], range(0, 4) or list(range(0, 4)) + [6]"
ITEM = re.compile(r"(\d{1,9})(?:\s*-\s*(\d{1,9}))?", re.ASCII)
PLAIN = re.compile(r"[\d\s,-]*", re.ASCII)

Kind = Literal["colocated", "disjoint", "overlapping"]
"""Generation and training take turns on all devices; have none in common; or training borrows some of generation's."""


Member = Literal["actor", "reference", "critic"]
"""Who has weights in training."""
FOLLOWERS: tuple[Literal["reference", "critic"], ...] = ("reference", "critic")
"""Those who sit with the actor unless something else is said."""


class Layout(Value, frozen=True, kw_only=True):
    """Where generation and training sit."""

    infer: tuple[int, ...]
    train: tuple[int, ...]
    """Empty: training has no device; it works beside them, on cores of its own."""
    infer_each: int = 1
    """Devices of one engine."""
    train_each: int = 1
    """Devices of one trainer."""
    reference: tuple[int, ...] = ()
    """Empty: with training."""
    critic: tuple[int, ...] = ()
    """Empty: with training."""

    @property
    def elsewhere(self) -> dict[tuple[int, ...], tuple[Member, ...]]:
        """All and only those who do not sit with training, by their devices; on the same ones they sit together."""
        found: dict[tuple[int, ...], tuple[Member, ...]] = {}
        for name, devices in zip(FOLLOWERS, (self.reference, self.critic), strict=True):
            own = tuple(sorted(devices))
            if own and own != tuple(sorted(self.train)):
                found[own] = (*found.get(own, ()), name)
        return found

    @property
    def lanes(self) -> list[tuple[Member, ...]]:
        """Who takes turns; those of two lanes have no device in common, so lanes work at the same time."""
        away = self.elsewhere
        there = {name for names in away.values() for name in names}
        home: tuple[Member, ...] = ("actor", *(name for name in FOLLOWERS if name not in there))
        lanes: list[tuple[set[int], tuple[Member, ...]]] = [({*self.train}, home)]
        for devices, names in away.items():
            met = [lane for lane in lanes if not lane[0].isdisjoint(devices)]
            lanes = [lane for lane in lanes if lane not in met]
            taken = {*devices}.union(*(lane[0] for lane in met))
            lanes.append((taken, (*(name for lane in met for name in lane[1]), *names)))
        return sorted((names for _, names in lanes), key=lambda names: "actor" not in names)

    @property
    def learning(self) -> tuple[int, ...]:
        """Devices of everybody who works when it is training's turn."""
        return tuple(sorted({*self.train, *self.reference, *self.critic}))

    @property
    def shared(self) -> tuple[int, ...]:
        """Devices around which generation shrinks and grows, or pauses if they are all it has."""
        return tuple(device for device in self.infer if device in set(self.learning))

    @property
    def kind(self) -> Kind:
        if not self.shared:
            return "disjoint"
        return "colocated" if len(self.shared) == len(self.infer) else "overlapping"

    @property
    def trainers(self) -> list[tuple[int, ...]]:
        """The devices of each trainer; none if training has no device."""
        return chunks(self.train, self.train_each)

    @property
    def engines(self) -> list[tuple[int, ...]]:
        """The devices of each engine."""
        return chunks(self.infer, self.infer_each)

    def __str__(self) -> str:
        train = f"training on {spelled(self.train)}" if self.train else "training apart"
        away = "".join(f", {' and '.join(names)} on {spelled(own)}" for own, names in self.elsewhere.items())
        return f"{self.kind}: generation on {spelled(self.infer)}, {train}{away}"


def parse_devices(spec: Sequence[int] | str | int, named: str = "device_mapping") -> tuple[int, ...]:
    """The devices that a list, a text or a number names; `named` is what an error calls the setting."""
    found = _found(spec, named)
    for device in found:
        if type(device) is not int:
            raise ConfigError(f"{named}: a device is a number, got {_echo(device)}; {FORMS}")
        if not 0 <= device <= LARGEST_DEVICE:
            raise ConfigError(f"{named}: devices go from 0 to {LARGEST_DEVICE}, got {_echo(device)}")
    if not found:
        raise ConfigError(f"{named} names no device, got {_echo(spec)}; leave it out, or {FORMS}")
    seen: set[int] = set()
    for device in found:
        if device in seen:
            raise ConfigError(f"{named} names device {device} twice, got {_echo(spec)}; name each once")
        seen.add(device)
    return tuple(found)


def chunks(devices: Sequence[int], each: int) -> list[tuple[int, ...]]:
    """The devices of each worker, in order."""
    return [tuple(devices[start : start + each]) for start in range(0, len(devices), each)]


def on_this_machine(device: str, mapped: Sequence[int]) -> str:
    """What torch calls the device of a worker in this process: where it says `cuda`, logical device i is GPU i.

    Whatever names one GPU, or none, is taken as it is; so is `cuda` of a worker without devices.
    """
    return f"{device}:{mapped[0]}" if device == "cuda" and mapped else device


def spelled(devices: Sequence[int]) -> str:
    """The short spelling, which `parse_devices` reads back."""
    runs: list[list[int]] = []
    for device in devices:
        if runs and device == runs[-1][-1] + 1:
            runs[-1].append(device)
        else:
            runs.append([device])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _found(spec: Sequence[int] | str | int, named: str) -> list[int]:
    match spec:
        case int():
            return [spec]
        case str():
            return _parsed(spec, named)
        case _:
            return [*spec]


def _parsed(text: str, named: str) -> list[int]:
    if len(text) > LONGEST_TEXT:
        raise ConfigError(f"{named} has {len(text)} characters, at most {LONGEST_TEXT} are read; use ranges")
    if PLAIN.fullmatch(text):
        return [device for item in text.split(",") for device in _item(item.strip(), text, named)]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is odd is refused below, by name
            tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{named} cannot be read, got {_echo(text)}; {FORMS}") from error
    return _listed(tree, named)


def _item(item: str, text: str, named: str) -> list[int]:
    """One part of the plain form: a device, or the first and the last of several."""
    if not text.strip():
        return []
    match = ITEM.fullmatch(item)
    if match is None:
        raise ConfigError(f"{named} cannot be read at {_echo(item)}, got {_echo(text)}; {FORMS}")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise ConfigError(f"{named} has the range {item}, which ends before it begins; write {last}-{first}")
    return [*_ranged(range(first, last + 1), named)]


def _listed(tree: ast.expr, named: str) -> list[int]:
    """The devices of an expression that Python users write: lists, ranges, and sums of them."""
    parts: list[ast.expr] = []
    while isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Add):
        parts.append(tree.right)
        tree = tree.left
    return [device for part in [tree, *reversed(parts)] for device in _part(part, named)]


def _part(tree: ast.expr, named: str) -> list[int]:
    match tree:
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_number(item, named) for item in items]
        case ast.Call(func=ast.Name(id="list"), args=[inner], keywords=[]):
            return _listed(inner, named)
        case ast.Call(func=ast.Name(id="range"), args=[_, *_] as ends, keywords=[]) if len(ends) <= 3:
            numbers = [_number(end, named) for end in ends]
            if numbers[2:] == [0]:
                raise ConfigError(f"{named}: the step of a range must not be 0, got {_echo(ast.unparse(tree))}")
            return [*_ranged(range(*numbers), named)]
        case ast.BinOp(op=ast.Add()):
            return _listed(tree, named)
        case ast.expr():
            raise ConfigError(f"{named} is read, not evaluated, so it cannot hold {_echo(_source(tree))}; {FORMS}")
        case _:
            assert_never(tree)


def _number(tree: ast.expr, named: str) -> int:
    match tree:
        case ast.Constant(value=int(value)) if type(value) is int:
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))) if type(value) is int:
            return -value
        case _:
            raise ConfigError(f"{named}: a device is a number, got {_echo(_source(tree))}; {FORMS}")


def _ranged(devices: range, named: str) -> range:
    """The same, if it is not too long to be written out; its ends say so before anything is made of it."""
    if devices and not 0 <= min(devices[0], devices[-1]) <= max(devices[0], devices[-1]) <= LARGEST_DEVICE:
        raise ConfigError(
            f"{named}: devices go from 0 to {LARGEST_DEVICE}, got a range from {_echo(devices[0])} to "
            f"{_echo(devices[-1])}"
        )
    return devices


def _source(tree: ast.expr) -> str:
    """An expression as it may be shown; what is nested too deeply by its kind alone."""
    try:
        return ast.unparse(tree)
    except (RecursionError, ValueError):
        return type(tree).__name__


def _echo(value: object) -> str:
    """What was written, shortened."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except ValueError:  # an integer with more digits than Python writes
        text = "a number of thousands of digits"
    shown = text if len(text) <= LONGEST_ECHO else f"{text[:LONGEST_ECHO]}…"
    return repr(shown) if isinstance(value, str) else shown
