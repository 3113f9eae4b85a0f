"""Brings a machine into a situation in one line; every promise is checked after every step."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from windrow.core.commands import AnyCommand, DeliverBatch, FetchTask, GrantLease
from windrow.core.events import (
    AnyEvent,
    AttemptEnded,
    AttemptProgressed,
    BatchWanted,
    EngineJoined,
    EngineReady,
    TaskArrived,
    WorkerJoined,
)
from windrow.core.machine import Machine
from windrow.core.settings import ModeSettings, Settings
from windrow.errors import WindrowError
from windrow.types import AttemptId, Blame, Failed, Finished, Mode

C = TypeVar("C")


class Checked(Machine):
    """A machine that checks its promises after every step; without a time no time passes."""

    def step(self, event: AnyEvent, now: float | None = None) -> list[AnyCommand]:
        commands = super().step(event, self.now if now is None else now)
        self.check()
        return commands

    def steps(self, *events: AnyEvent, now: float | None = None) -> list[AnyCommand]:
        """Several steps at the same time, and everything that they ordered."""
        return [command for event in events for command in self.step(event, now)]


# situations


def machine(*, size: int = 2, batch: int = 4, **rest: object) -> Checked:
    """A machine to which nothing has happened; names of either kind of settings, those of modes for training."""
    of_mode = {name: value for name, value in rest.items() if name in ModeSettings.__struct_fields__}
    others = {name: value for name, value in rest.items() if name not in of_mode}
    train = ModeSettings(group_size=size, batch_size=batch, **of_mode)  # type: ignore[arg-type]
    return Checked(Settings(train=train, **others))  # type: ignore[arg-type]


def staffed(*, slots: int = 8, engines: int = 1, **rest: object) -> Checked:
    """The same with a worker w0 and engines e0, e1 … that serve."""
    made = machine(**rest)  # type: ignore[arg-type]
    for number in range(engines):
        made.steps(*serving(f"e{number}", devices=(number,)))
    made.step(WorkerJoined("w0", slots))
    return made


def opened(*, n: int | None = None, tasks: int | None = None, **rest: object) -> Checked:
    """The same with a waiting trainer (for one batch) and tasks (as many as were asked for)."""
    made = staffed(**rest)  # type: ignore[arg-type]
    commands = made.step(wanted(made.settings.train.batch_size if n is None else n))
    feed(made, fetched(commands) if tasks is None else tasks)
    return made


def queued(**rest: object) -> Checked:
    """A waiting trainer, an engine e0 and all tasks, but no worker yet."""
    made = machine(**rest)  # type: ignore[arg-type]
    commands = made.steps(*serving("e0"), wanted(made.settings.train.batch_size))
    feed(made, fetched(commands))
    return made


def feed(made: Checked, count: int, mode: Mode = "train", tag: str = "", kind: str = "") -> list[AnyCommand]:
    """Tasks arrive, each with the number of its group as its ordinal."""
    return [
        command for _ in range(count) for command in made.step(TaskArrived(mode, made._books.next_group, tag, kind))
    ]


def complete(made: Checked, *groups: int, score: float = 0.0, version: int = -1) -> list[AnyCommand]:
    """Everything that plays in these groups finishes, first granted first, until each group is complete."""
    commands: list[AnyCommand] = []
    for group in groups:
        while (index := _first_playing(made, group)) is not None:
            commands += made.step(ended(group, index, score=score, version=version))
    return commands


def _first_playing(made: Checked, number: int) -> int | None:
    group = made._books.groups.get(number)
    playing = [] if group is None else [index for index, attempt in group.attempts.items() if not attempt.finished]
    return min(playing, default=None)


# events


def serving(engine: str, version: int = 0, capacity: int = 1, devices: tuple[int, ...] = ()) -> list[AnyEvent]:
    """An engine joins and is warm."""
    return [EngineJoined(engine, version, capacity, devices), EngineReady(engine)]


def wanted(n: int, step: int = 0, consumer: str = "trainer", mode: Mode = "train") -> BatchWanted:
    return BatchWanted(consumer, mode, n, step)


def ended(group: int, index: int, *, score: float = 0.0, tokens: int = 0, version: int = -1) -> AttemptEnded:
    return AttemptEnded(AttemptId(group, index), Finished(score, tokens, version))


def failed(group: int, index: int, blame: Blame = "env", why: str = "broke", tokens: int = 0) -> AttemptEnded:
    return AttemptEnded(AttemptId(group, index), Failed(blame, why, tokens))


def progressed(group: int, index: int, tokens: int = 0, version: int = -1) -> AttemptProgressed:
    return AttemptProgressed(AttemptId(group, index), tokens, version)


# commands


def only(commands: Iterable[AnyCommand], kind: type[C]) -> list[C]:
    """The commands of one kind."""
    return [command for command in commands if isinstance(command, kind)]


def but_not(commands: Iterable[AnyCommand], *kinds: type[AnyCommand]) -> list[AnyCommand]:
    """The commands of all other kinds."""
    return [command for command in commands if not isinstance(command, kinds)]


def played(commands: Iterable[AnyCommand]) -> list[str]:
    """The attempts that were granted, in order."""
    return [str(lease.attempt) for lease in only(commands, GrantLease)]


def fetched(commands: Iterable[AnyCommand]) -> int:
    """How many tasks were asked for."""
    return sum(fetch.count for fetch in only(commands, FetchTask))


def delivered(commands: Iterable[AnyCommand]) -> list[tuple[int, ...]]:
    """The groups of each batch that was handed over."""
    return [batch.groups for batch in only(commands, DeliverBatch)]


# refusals


@contextmanager
def refusal(made: Checked, error: type[WindrowError], *, match: str) -> Iterator[None]:
    """Something is refused with a message, and the machine is what it was, byte for byte."""
    before = made.snapshot()
    with pytest.raises(error, match=match):
        yield
    assert made.snapshot() == before
    made.check()
