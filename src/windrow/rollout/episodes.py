"""One attempt played: environment and policy take turns until it is over.

Promises: the trajectory holds exactly what was sampled and shown. Whatever the environment raises or answers wrongly is
filed as its fault with attempt and turn; its steps have a deadline; closing it has a short limit of its own, and is up
to whoever plays the episode. Why an episode is over is always stated. Nothing here knows of groups or batches.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from numbers import Real
from typing import Any, Literal, TypeVar

import numpy as np

from windrow.envs.places import Place
from windrow.envs.protocol import DEADLINE, Briefing, Env, Observation, Rewritten, Step
from windrow.errors import ConfigError, EngineError, EnvError, PromptTooLong, blame
from windrow.requests import Sampling, Tokens
from windrow.rollout.env_config import EnvTimes
from windrow.rollout.orders import Lease
from windrow.rollout.router import Answer, Ask, Route
from windrow.rollout.seeds import turn_seed
from windrow.rollout.supervision import contained
from windrow.text import Codec, Message, Tool
from windrow.trajectory import Chain, Ending, Segment, Trajectory, Turn
from windrow.types import Value, but

log = logging.getLogger(__name__)

A = TypeVar("A")

LARGEST = float(np.finfo(np.float32).max)


class EpisodeSettings(Value, frozen=True, kw_only=True, gc=True):
    """How episodes are played."""

    codec: Codec
    sampling: Sampling
    max_turns: int | None
    limit_tokens: int
    """Longest chain: the context of the model, or less."""
    limit_is: Literal["context", "max_tokens"]
    """Whose limit that is."""
    seed: int


class Stage(Value, frozen=True):
    """What an episode is doing, and since when."""

    name: str
    since: float


class Episode:
    """An attempt while it is played."""

    def __init__(self, lease: Lease, settings: EpisodeSettings, times: EnvTimes, route: Route) -> None:
        self.lease = lease
        self.route = route
        self.turns: list[Turn] = []
        self.stage = Stage("waiting to begin", asyncio.get_running_loop().time())
        self.tokens = 0  # sampled so far, in whole turns
        self.oldest_version = -1  # of any of them
        self._settings = settings
        self._times = times
        self._who = f"{lease.attempt} environment {lease.task.tag!r}"
        self._env: Env | None = None
        self._chains: list[_Growing] = []
        self._tools: tuple[Tool, ...] = ()
        self._seen: tuple[Message, ...] = ()  # since the last response
        self._clock = asyncio.get_running_loop().time
        self._began_at = self._clock()

    async def play(self, place: Place, on_turn: Callable[["Episode"], None]) -> Trajectory:
        """Play to the end; raises if something breaks, and then there is no trajectory."""
        with blame(EnvError, self._who, "could not be made"):
            self._env = place.make()
        return await self._take_turns(self._env, on_turn)

    async def close(self) -> None:
        """Close the environment, if there is one; whatever goes wrong with that changes nothing else."""
        if self._env is None:
            return
        try:
            with blame(EnvError, self._who, "close"), _due(self._clock() + self._times.close_s) as due:
                async with asyncio.timeout_at(due):
                    await self._env.close()
        except EnvError as error:
            log.warning("environment did not close: %s", error, extra={"attempt": str(self.lease.attempt)})

    async def _take_turns(self, env: Env, on_turn: Callable[["Episode"], None]) -> Trajectory:
        self._enter("starting")
        times = self._times
        observation = await self._ask_env("start", times.start_s, lambda: env.start(self.lease.task))
        while True:
            self._see(observation)
            ending = self._reached()
            if ending is not None:
                return self._trajectory(ending, {})
            began = self._enter("generating")
            answer = await self.route.generate(self._question())
            span = self._hear(answer)
            stepped_at = self._enter("environment steps")
            with blame(EngineError, self.lease.attempt, "turn", len(self.turns), "cannot be decoded"):
                action = self._settings.codec.decode(answer.token_ids)
            said = await self._ask_env("step", times.step_s, partial(_step, env, action))
            step = self._checked(said)
            turn = self._turn(span, answer, step, stepped_at - began, self._clock() - stepped_at)
            self.turns.append(but(turn, seen=self._seen, action=action))
            on_turn(self)
            if step.terminated or step.truncated:
                return self._trajectory("terminated" if step.terminated else "truncated", step.info)
            if len(self.turns) == self._settings.max_turns:
                return self._trajectory("max_turns", step.info)
            observation = step.observation

    async def _ask_env(self, what: str, within_s: float, call: Callable[[], Awaitable[A]]) -> A:
        """Wait for the environment, as long as it may take."""
        words = (self._who, what, len(self.turns))
        with blame(EnvError, *words), _due(self._clock() + within_s) as due:
            async with asyncio.timeout_at(due):
                try:
                    return await contained(EnvError, words, call)
                except EnvError as error:  # of whoever keeps it apart, and does not know which attempt this is
                    if str(error).startswith(self._who):
                        raise
                    raise EnvError(f"{self._who} {what} {len(self.turns)}: {error}") from error.__cause__

    def _see(self, observation: Observation) -> None:
        """Put an observation into the history, or begin another history."""
        codec = self._settings.codec
        rewritten = isinstance(observation, Rewritten | Briefing)
        messages = self._messages(observation)
        self._seen = tuple(messages)
        if isinstance(observation, Briefing):
            self._tools = observation.tools
        with blame(ConfigError, self.lease.attempt, "chat template"):
            if rewritten or not self._chains:
                self._chains.append(_Growing())
                self._chains[-1].add("prompt", codec.begin(messages, self._tools))
            else:
                chain = self._chains[-1]
                chain.add("environment", codec.extend(chain.last_answer, messages))

    def _reached(self) -> Ending | None:
        """A limit that leaves no room for another turn."""
        length = self._chains[-1].length
        if not length:
            raise EnvError(f"{self._who} observation {len(self.turns)} has no tokens; show the policy something")
        if length < self._settings.limit_tokens:
            return None
        if not self.turns:
            whose = "the model's context" if self._settings.limit_is == "context" else "sequence_length"
            raise PromptTooLong(
                f"{self.lease.attempt} begins with {length} tokens; {whose} is {self._settings.limit_tokens}: "
                f"shorten the first observation, or raise it"
            )
        self._unsee()
        return self._settings.limit_is

    def _unsee(self) -> None:
        """Forget an observation that nobody will answer: it may be far longer than any model's context."""
        if not self._chains[-1].forget_last():
            self._chains.pop()

    def _question(self) -> Ask:
        settings = self._settings
        prompt = self._chains[-1].token_ids()
        room = min(settings.sampling.max_tokens, settings.limit_tokens - len(prompt))
        turn = len(self.turns)
        lease = self.lease
        sampling = settings.sampling
        return Ask(
            turn=turn,
            prompt=prompt,
            sampling=sampling if room == sampling.max_tokens else but(sampling, max_tokens=room),
            seed=turn_seed(settings.seed, lease.mode, lease.task, lease.seat, turn),
        )

    def _turn(self, span: tuple[int, int], answer: Answer, step: Step, generate_s: float, env_s: float) -> Turn:
        return Turn(
            chain=len(self._chains) - 1,
            begin=span[0],
            end=span[1],
            reward=float(step.reward),
            finish=answer.finish,
            requests=answer.requests,
            generate_s=generate_s,
            env_s=env_s,
        )

    def _trajectory(self, ending: Ending, info: dict[str, Any]) -> Trajectory:
        lease = self.lease
        return Trajectory(
            attempt=lease.attempt,
            seat=lease.seat,
            mode=lease.mode,
            task=lease.task,
            chains=tuple(chain.done() for chain in self._chains),
            turns=tuple(self.turns),
            score=sum(turn.reward for turn in self.turns),
            ending=ending,
            engines=tuple(self.route.used),
            began_at=self._began_at,
            ended_at=self._clock(),
            info=info,
        )

    def _hear(self, answer: Answer) -> tuple[int, int]:
        """Put what the policy said into the history; says where it begins and ends."""
        self.tokens += len(answer.token_ids)
        oldest = min((segment.version for segment in answer.segments), default=self.oldest_version)
        self.oldest_version = oldest if self.oldest_version < 0 else min(oldest, self.oldest_version)
        return self._chains[-1].add_answer(answer)

    def _messages(self, observation: Observation) -> list[Message]:
        """An observation as messages; text is the user's."""
        match observation:
            case str():
                return [Message("user", observation)]
            case Message():
                return [observation]
            case Rewritten(messages=[*messages]) | Briefing(messages=[*messages]) | [*messages] if _are_messages(
                messages
            ):
                return messages
            case _:
                raise EnvError(
                    f"{self._who} observation {len(self.turns)} is {observation!r:.60}; "
                    f"return text, a Message, a list of them, Briefing or Rewritten"
                )

    def _checked(self, step: object) -> Step:
        """What an environment answered, if it makes sense."""
        if not isinstance(step, Step):
            raise EnvError(f"{self._who} step {len(self.turns)} returned {step!r:.60}; return a Step")
        reward: object = step.reward
        info: object = step.info
        if not isinstance(info, dict):
            raise EnvError(f"{self._who} step {len(self.turns)} returned info {info!r:.60}; info is a dict")
        if not _is_finite(reward):
            raise EnvError(
                f"{self._who} step {len(self.turns)} returned reward {reward!r:.60}; a reward is a finite number"
            )
        return step

    def _enter(self, name: str) -> float:
        """Another stage begins; says when."""
        now = self._clock()
        self.stage = Stage(name, now)
        return now


class _Growing:
    """A chain while it grows."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.length = 0
        self.last_answer: Tokens = np.empty(0, np.int32)
        self._tokens: list[Tokens] = []
        self._logprobs: list[np.ndarray[Any, np.dtype[np.float32]]] = []

    def add(self, author: Literal["prompt", "environment"], tokens: Tokens) -> None:
        """Something that nobody sampled."""
        if len(tokens):
            self._append(tokens, np.zeros(len(tokens), np.float32), [Segment(author, len(tokens))])

    def add_answer(self, answer: Answer) -> tuple[int, int]:
        """What the policy said; says where it begins and ends."""
        begin = self.length
        self.last_answer = answer.token_ids
        self._append(answer.token_ids, answer.logprobs, answer.segments)
        return begin, self.length

    def forget_last(self) -> bool:
        """Take away what was added last; false if nothing would be left."""
        if len(self._tokens) < 2:
            return False
        self.length -= len(self._tokens.pop())
        self._logprobs.pop()
        self.segments.pop()
        return True

    def token_ids(self) -> Tokens:
        return np.concatenate(self._tokens)  # never none: an empty history is refused

    def done(self) -> Chain:
        return Chain(token_ids=self.token_ids(), logprobs=np.concatenate(self._logprobs), segments=tuple(self.segments))

    def _append(self, tokens: Tokens, logprobs: "np.ndarray[Any, np.dtype[np.float32]]", by: Sequence[Segment]) -> None:
        self._tokens.append(tokens)
        self._logprobs.append(logprobs)
        self.segments.extend(by)
        self.length += len(tokens)


@contextmanager
def _due(at: float) -> Iterator[float]:
    """Let the environment see by when it must answer."""
    token = DEADLINE.set(at)
    try:
        yield at
    finally:
        DEADLINE.reset(token)


def _step(env: Env, action: str) -> Awaitable[Step]:
    return env.step(action)  # looked up where it is called, because it may not be there


def _are_messages(messages: list[Any]) -> bool:
    return bool(messages) and all(isinstance(message, Message) for message in messages)


def _is_finite(number: object) -> bool:
    """It is a number, and one that a batch can hold."""
    return isinstance(number, Real) and bool(-LARGEST <= number <= LARGEST)  # type: ignore[operator]  # it is a number
