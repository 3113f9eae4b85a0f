"""Trajectories in one line, for any test that needs some.

Token ids count up from 1 through all chains, so that each is unique in its trajectory and none is the padding; the
log-probability of the sampled token number n is -n / 1024, which float32 holds exactly.
"""

from collections.abc import Sequence

import numpy as np

from windrow.trajectory import Chain, Ending, Segment, Task, Trajectory, Turn
from windrow.types import AttemptId

Shape = tuple[int, int, int, float]
"""Of a turn: tokens of its observation, tokens of its response, version, reward."""


def trajectory(
    group: int = 0,
    index: int = 0,
    turns: Sequence[Shape] = ((3, 2, 0, 1.0),),
    *,
    score: float | None = None,
    rewritten: Sequence[int] = (),
    rest: int = 0,
    seat: int = 0,
    tag: str = "",
    ending: Ending = "terminated",
) -> Trajectory:
    """An episode of these turns; the score is the sum of rewards unless it is given.

    `rewritten` names turns before which history was rewritten: each begins a chain, with its observation as the prompt.
    `rest` tokens of the environment follow the last response.
    """
    writer = Writer()
    for number, (observation, response, version, reward) in enumerate(turns):
        if number in rewritten:
            writer.rewrite()
        writer.observe(observation)
        writer.respond(response, version, reward)
    writer.observe(rest)
    return Trajectory(
        attempt=AttemptId(group, index),
        seat=seat,
        mode="train",
        task=Task(ordinal=group, tag=tag),
        chains=(*writer.done, writer.chain()),
        turns=tuple(writer.turns),
        score=sum(reward for *_, reward in turns) if score is None else score,
        ending=ending,
    )


class Writer:
    """Writes chains token by token."""

    def __init__(self) -> None:
        self.done: list[Chain] = []
        self.turns: list[Turn] = []
        self.begin = 1
        self.segments: list[Segment] = []

    @property
    def length(self) -> int:
        return sum(segment.length for segment in self.segments)

    def observe(self, tokens: int) -> None:
        began = any(segment.author == "policy" for segment in self.segments)
        if tokens:
            self.segments.append(Segment("environment" if began else "prompt", tokens))

    def respond(self, tokens: int, version: int, reward: float) -> None:
        begin, end = self.length, self.length + tokens
        if tokens:
            self.segments.append(Segment("policy", tokens, version))
        self.turns.append(Turn(chain=len(self.done), begin=begin, end=end, reward=reward, finish="stop"))

    def rewrite(self) -> None:
        self.done.append(self.chain())
        self.begin += self.length
        self.segments = []

    def chain(self) -> Chain:
        ids = np.arange(self.begin, self.begin + self.length, dtype=np.int32)
        chain = Chain(token_ids=ids, logprobs=np.zeros(len(ids), np.float32), segments=tuple(self.segments))
        for begin, end, segment in chain.spans():
            if segment.author == "policy":
                chain.logprobs[begin:end] = -ids[begin:end] / 1024
        return chain
