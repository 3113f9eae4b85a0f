"""Small workloads and worlds, in one line each."""

from typing import Any

import msgspec
from tests.sim.fifo import Fifo

from windrow.core.events import AnyEvent
from windrow.sim.config import SimConfig
from windrow.sim.world import World

LONG_TAIL = {
    "kind": "duration",
    "task": {"kind": "lognormal", "median": 10, "sigma": 0.9},
    "own": {"kind": "lognormal", "median": 1, "sigma": 0.85},
    "cap_s": 600,
}
TEN_SECONDS = {"kind": "duration", "task": {"kind": "constant", "value": 10}}

Told = list[tuple[float, AnyEvent]]


def config(*, size: int = 2, batch: int = 2, **settings: Any) -> SimConfig:
    """A small run of two steps; whatever is named replaces its default."""
    made: dict[str, Any] = {"slots": 1, "steps": 2, "episode": TEN_SECONDS}
    made["machine"] = {"train": {"group_size": size, "batch_size": batch}}
    return msgspec.convert({**made, **settings}, SimConfig)


def constant(value: float) -> dict[str, Any]:
    return {"kind": "constant", "value": value}


def turns(number: int, tokens: float, **more: Any) -> dict[str, Any]:
    """Episodes of so many turns of so many tokens."""
    return {"kind": "turns", "turns": constant(number), "tokens_per_turn": constant(tokens), **more}


def fifo_world(made: SimConfig, told: Told | None = None, ahead: int = 1) -> World:
    """A world whose scheduler plays in order of arrival."""
    scheduler = Fifo(made.policy, engines=max(1, made.engines.count), ahead=ahead)
    return World(made, scheduler, record=None if told is None else lambda now, event: told.append((now, event)))
