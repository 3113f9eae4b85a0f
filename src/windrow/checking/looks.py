"""Whether an answer of an environment is one: observations, steps, info. Nothing is played here."""

from collections.abc import Iterator
from numbers import Real

import msgspec
import numpy as np

from windrow.envs.protocol import Briefing, Observation, Rewritten, Step
from windrow.isolation.pickles import Unsendable, dump, load
from windrow.text import ASK, Message
from windrow.types import Value

LONGEST = 50_000
"""Characters of an observation that fit into an ordinary context, more or less."""
LARGEST = float(np.finfo(np.float32).max)


class Fault(Value, frozen=True):
    """What is wrong with an answer."""

    rule: str
    message: str


def is_observation(value: object) -> bool:
    """Whether it can be shown to a policy."""
    match value:
        case str() | Message():
            return True
        case Rewritten(messages=messages) | Briefing(messages=messages):
            return _are_messages(messages)
        case list() | tuple():
            return _are_messages(value)
        case _:
            return False


def messages_of(observation: Observation) -> tuple[Message, ...]:
    """What the policy is shown."""
    match observation:
        case str():
            return (Message(ASK, observation),)
        case Message():
            return (observation,)
        case Rewritten(messages=messages) | Briefing(messages=messages):
            return tuple(messages)
        case _:
            return tuple(observation)


def text_of(observation: Observation) -> str:
    """The same as one text."""
    return "\n".join(message.content for message in messages_of(observation))


def of_observation(value: object, *, call: str, last: bool = False) -> Iterator[Fault]:
    """What is wrong with what is shown; after the end nobody sees it, but it must still be one."""
    if not is_observation(value):
        yield Fault("observation-type", f"{call} shows {value!r:.60}{_hint(value)}")
        return
    observation: Observation = value  # type: ignore[assignment]  # it is one
    if isinstance(observation, Briefing) and call != "start":
        yield Fault("observation-type", f"{call} shows a Briefing; tools are offered in the first observation alone")
    text = text_of(observation)
    if not _is_unicode(text):
        yield Fault(
            "observation-type", f"{call} shows {text!r:.60}, which holds half a character and cannot be encoded"
        )
    if not text.strip() and not last:
        yield Fault("observation-empty", f"{call} shows {text!r} and the episode goes on")
    if len(text) > LONGEST:
        yield Fault(
            "observation-long", f"{call} shows {len(text):,} characters at once; more than {LONGEST:,} are many"
        )
    yield from _of_pickling(observation, f"the observation of {call}")


def of_step(value: object) -> Iterator[Fault]:
    """What is wrong with a step, without its observation."""
    if not isinstance(value, Step):
        yield Fault("not-a-step", f"step returned {value!r:.60}{_tuple_hint(value)}")
        return
    yield from _of_reward(value.reward)
    flags: dict[str, object] = {"terminated": value.terminated, "truncated": value.truncated}
    for name, flag in flags.items():
        if not isinstance(flag, bool | np.bool_):
            yield Fault("flag-type", f"step returned {name}={flag!r:.60}")
    if value.terminated is True and value.truncated is True:
        yield Fault("both-flags", "step returned terminated=True and truncated=True together")
    yield from _of_info(value.info)


def _of_reward(reward: object) -> Iterator[Fault]:
    if not isinstance(reward, Real) or not -LARGEST <= float(reward) <= LARGEST:
        yield Fault("reward-type", f"step returned reward={reward!r:.60}")


def _of_info(info: object) -> Iterator[Fault]:
    if not isinstance(info, dict) or not all(isinstance(key, str) for key in info):
        yield Fault("info-type", f"step returned info={info!r:.60}")
        return
    unsent = [*_of_pickling(info, "info of step")]
    yield from unsent
    if unsent:
        return
    try:
        msgspec.msgpack.encode(info)
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError, RecursionError) as error:
        yield Fault("info-plain", f"info of step cannot be written down: {error}; it is {info!r:.60}")


def _of_pickling(value: object, what: str) -> Iterator[Fault]:
    try:
        load(dump(value))
    except Unsendable as error:
        yield Fault("not-picklable", f"{what} cannot be sent to another process: {error!s:.200}")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _are_messages(messages: object) -> bool:
    if not isinstance(messages, list | tuple) or not messages:
        return False
    return all(isinstance(each, Message) and isinstance(each.content, str) for each in messages)


def _hint(value: object) -> str:
    match value:
        case None:
            return "; is a return missing?"
        case (_, dict()):
            return "; an observation and info are what reset returns, start returns the observation alone"
        case _:
            return ""


def _tuple_hint(value: object) -> str:
    match value:
        case None:
            return "; is a return missing?"
        case tuple():
            return "; tuples are what classes with reset return, which `plain` adapts"
        case _:
            return ""
