"""Whether an answer of an environment is one: observations, steps, info. Nothing is played here."""

from collections.abc import Iterator
from numbers import Real

import msgspec
import numpy as np

from windrow.envs.plain import as_messages
from windrow.envs.protocol import Briefing, Observation, Rewritten, Step
from windrow.isolation.pickles import Unsendable, dump, load
from windrow.loading.words import number, said, shown, truth
from windrow.text import Message
from windrow.types import Value

LONGEST = 50_000
"""Characters of an observation that fit into an ordinary context, more or less."""
LARGEST = float(np.finfo(np.float32).max)
ROLES = frozenset(
    {"system", "developer", "user", "assistant", "tool", "function", "environment", "observation", "ipython"}
)
"""Who speaks in the chat templates that there are; most know four of them."""


class Fault(Value, frozen=True):
    """What is wrong with an answer."""

    rule: str
    message: str


def is_observation(value: object) -> bool:
    """Whether it can be shown to a policy."""
    match value:
        case str():
            return True
        case Message():
            return _is_message(value)
        case Rewritten(messages=messages) | Briefing(messages=messages):
            return _are_messages(messages)
        case list() | tuple():
            return _are_messages(value)
        case _:
            return False


def text_of(observation: Observation) -> str:
    """The same as one text."""
    return "\n".join(message.content for message in as_messages(observation))


def of_observation(value: object, *, call: str, last: bool = False) -> Iterator[Fault]:
    """What is wrong with what is shown; after the end nobody sees it, but it must still be one."""
    if not is_observation(value):
        yield Fault("observation-type", f"{call} shows {shown(value)}{_hint(value)}")
        return
    observation: Observation = value  # type: ignore[assignment]  # it is one
    if isinstance(observation, Briefing) and call != "start":
        yield Fault("observation-type", f"{call} shows a Briefing; tools are offered in the first observation alone")
    text = text_of(observation)
    if not _is_unicode(text):
        yield Fault(
            "observation-type", f"{call} shows {shown(text)}, which holds half a character and cannot be encoded"
        )
    if not text.strip() and not last:
        yield Fault("observation-empty", f"{call} shows {shown(text)} and the episode goes on")
    if len(text) > LONGEST:
        yield Fault(
            "observation-long", f"{call} shows {len(text):,} characters at once; more than {LONGEST:,} are many"
        )
    yield from _of_pickling(observation, f"the observation of {call}")


def of_step(value: object) -> Iterator[Fault]:
    """What is wrong with a step, without its observation."""
    if not isinstance(value, Step):
        yield Fault("not-a-step", f"step returned {shown(value)}{_tuple_hint(value)}")
        return
    yield from _of_reward(value.reward)
    flags: dict[str, object] = {"terminated": value.terminated, "truncated": value.truncated}
    for name, flag in flags.items():
        if not isinstance(flag, bool | np.bool_):
            yield Fault("flag-type", f"step returned {name}={shown(flag)}")
    if all(isinstance(flag, bool | np.bool_) and flag for flag in flags.values()):
        yield Fault("both-flags", "step returned terminated=True and truncated=True together")
    yield from _of_info(value.info)


def is_over(step: Step) -> bool | None:
    """Whether an episode ends with it; none if its flags cannot tell."""
    flags = (truth(step.terminated), truth(step.truncated))
    return None if None in flags else any(flags)


def _of_reward(reward: object) -> Iterator[Fault]:
    value = number(reward) if isinstance(reward, Real) else None
    if value is None or not -LARGEST <= value <= LARGEST:
        yield Fault("reward-type", f"step returned reward={shown(reward)}")


def _of_info(info: object) -> Iterator[Fault]:
    if not isinstance(info, dict) or not all(isinstance(key, str) for key in info):
        yield Fault("info-type", f"step returned info={shown(info)}")
        return
    unsent = [*_of_pickling(info, "info of step")]
    yield from unsent
    if unsent:
        return
    try:
        msgspec.msgpack.encode(info)
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError, RecursionError) as error:
        yield Fault("info-plain", f"info of step cannot be written down: {error}; it is {shown(info)}")


def _of_pickling(value: object, what: str) -> Iterator[Fault]:
    try:
        load(dump(value))
    except Unsendable as error:
        yield Fault("not-picklable", f"{what} cannot be sent to another process: {said(error)}")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _are_messages(messages: object) -> bool:
    if not isinstance(messages, list | tuple) or not messages:
        return False
    return all(isinstance(each, Message) and _is_message(each) for each in messages)


def _is_message(message: Message) -> bool:
    texts: tuple[object, ...] = (message.role, message.content, message.name)
    return all(isinstance(text, str) for text in texts) and message.role in ROLES


def _hint(value: object) -> str:
    match value:
        case None:
            return "; is a return missing?"
        case Message(role=str(role)) if role not in ROLES:
            return f"; no chat template knows the role {role!r:.20}"
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
