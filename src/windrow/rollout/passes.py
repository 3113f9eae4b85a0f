"""What a caller of `get_batch` asks for, and how far it has come with asking.

Promises: a pass of validation is named by its step and, if it is not the only one of that step, by a name of its own.
It plays its tasks from the beginning and is sampled in one way; asked for again it is the same batch. What cannot be
meant is refused before anything is changed.
"""

from collections import Counter
from collections.abc import Mapping
from numbers import Integral
from typing import Any

import msgspec

from windrow.errors import ConfigError, Refused, TrainError
from windrow.nearest import did_you_mean
from windrow.protocol import DataProto
from windrow.requests import Sampling
from windrow.rollout.dispatch import Delivery
from windrow.types import Mode, Record, Value, but, checked

WAY_OUT = "pass DataProto(meta_info={'global_step': step})"


class Asked(Value, frozen=True, kw_only=True):
    """What one call of `get_batch` wants."""

    mode: Mode
    step: int
    name: str
    """Of the pass; empty for the usual one."""
    sampling: Sampling

    @property
    def consumer(self) -> str:
        """Who waits for it, as the queue knows it."""
        return f"{self.mode} {self.name}" if self.name else self.mode


class Answered(Value, frozen=True, kw_only=True):
    """The last pass of one name that came to its end."""

    step: int
    sampling: Sampling
    batch: int
    """Its number; -1 if nothing more came."""


class Progress(Record, gc=True, kw_only=True):
    """How far one mode has come with asking."""

    newest_step: int = 0
    """That was asked for."""
    has_asked: bool = False
    answered: dict[str, Answered] = {}
    """By consumer."""
    streamed: int = 0
    """Groups, by all streams."""

    def check(self, asked: Asked) -> None:
        """Refuse a step of the past, and a pass that was played in another way."""
        if asked.step < self.newest_step:
            raise Refused(
                f"global_step went back from {self.newest_step} to {asked.step}; ask for {self.newest_step} again, "
                f"or for a larger one"
            )
        last = self.answered.get(asked.consumer)
        if last is not None and last.step == asked.step and last.sampling != asked.sampling:
            raise Refused(
                f"step {asked.step} was sampled in another way for {asked.consumer!r} (temperature "
                f"{last.sampling.temperature:g}); give the other pass a name of its own: meta_info['pass']"
            )

    def begins_anew(self, asked: Asked) -> bool:
        """Whether it is another pass over the tasks of validation than those that were played."""
        last = self.answered.get(asked.consumer)
        return asked.mode == "val" and self.has_asked and (last is None or last.step != asked.step)

    def begin(self, asked: Asked) -> list[int]:
        """Something is asked for; says which batches of earlier steps that makes useless."""
        self.has_asked = True
        self.newest_step = asked.step
        past = {name: last for name, last in self.answered.items() if last.step < asked.step}
        for name in past:
            del self.answered[name]
        past.pop(asked.consumer, None)  # its own are known to be over by the larger step
        return [last.batch for last in past.values() if last.batch >= 0]

    def end(self, asked: Asked, batch: int | None) -> None:
        """It came, or nothing more comes."""
        number = -1 if batch is None else batch
        self.answered[asked.consumer] = Answered(step=asked.step, sampling=asked.sampling, batch=number)


def read_asked(data: object, mode: Mode, usual: Sampling) -> Asked:
    """What the meta data of a call say; sampling is the usual one unless they change it."""
    if not isinstance(data, DataProto):
        raise ConfigError(f"get_batch needs a DataProto that names the step, got {data!r:.60}; {WAY_OUT}")
    said = data.meta_info
    if mode == "train" and not said.keys().isdisjoint(("pass", "sampling")):
        raise ConfigError("get_batch takes pass and sampling for validation alone; training is sampled as configured")
    name = said.get("pass", "")
    if not isinstance(name, str):
        raise ConfigError(f"data.meta_info['pass'] is the name of a pass, got {name!r:.60}")
    return Asked(mode=mode, step=_step(said), name=name, sampling=_sampling(said.get("sampling"), usual))


def one_version(delivery: Delivery) -> int:
    """The version of the weights that a pinned validation was sampled from; raises if there are several."""
    versions = Counter(version for trajectory in delivery.trajectories for version in trajectory.versions)
    if len(versions) > 1:
        told = ", ".join(f"{version} in {count}" for version, count in sorted(versions.items()))
        raise TrainError(
            f"a validation of {len(delivery.trajectories)} episodes is not of one version: {told}; nobody may change "
            f"weights while it is played: await it before, or set engines aside for it"
        )
    return next(iter(versions), delivery.order.version)


def whole(number: object, what: str) -> int:
    """A whole number of any make."""
    if isinstance(number, bool) or not isinstance(number, Integral):
        raise ConfigError(f"{what}, got {number!r}")
    return int(number)


def _step(said: Mapping[str, Any]) -> int:
    step = whole(
        said.get("global_step"), f"get_batch needs data.meta_info['global_step'], a number from 0 up ({WAY_OUT})"
    )
    if step < 0:
        raise ConfigError(f"get_batch needs data.meta_info['global_step'], a number from 0 up, got {step}")
    return step


def _sampling(said: object, usual: Sampling) -> Sampling:
    if said is None:
        return usual
    if not isinstance(said, Mapping | Sampling):
        raise ConfigError(f"data.meta_info['sampling'] names settings of the sampling, got {said!r:.60}")
    changes = msgspec.structs.asdict(said) if isinstance(said, Sampling) else dict(said)
    for name in changes:
        if name not in Sampling.__struct_fields__:
            raise ConfigError(f"unknown setting sampling.{name}{did_you_mean(str(name), Sampling.__struct_fields__)}")
    try:
        return checked(but(usual, **changes))
    except ValueError as error:
        raise ConfigError(f"data.meta_info['sampling']: {error}") from error
