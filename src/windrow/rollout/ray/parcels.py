"""Trajectories on their way: a header that the queue reads, and a body that it only keeps a reference to.

Promises: a body is written once, by whoever played it, and read once, by whoever needs its tokens. It belongs to the
queue, so it outlives the process that wrote it. What comes out is what went in, token by token.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from windrow.cluster.ray.hosts import fetched
from windrow.requests import Logprobs, Tokens
from windrow.trajectory import Chain, Segment, Trajectory, Turn
from windrow.types import Value, but

HEADER = [name for name in Trajectory.__struct_fields__ if name not in ("chains", "turns")]
"""The fields of a trajectory that its header has."""


class Parcel(Trajectory, frozen=True, kw_only=True, gc=True):
    """A trajectory whose tokens are elsewhere."""

    body: Any
    """Where: a reference in the object store."""
    place: int
    """Which one of those that lie there."""
    tokens: int
    known_versions: tuple[int, ...]
    last_reward: float | None = None
    """Of its last turn, if a reward has changed it."""

    @property
    def policy_tokens(self) -> int:
        return self.tokens

    @property
    def versions(self) -> set[int]:
        return {*self.known_versions}


class Outline(Value, frozen=True):
    """A body without its numbers."""

    lengths: tuple[int, ...]
    """Of each chain."""
    segments: tuple[tuple[Segment, ...], ...]
    turns: tuple[Turn, ...]


class Bodies(Value, frozen=True):
    """The bodies of several trajectories."""

    token_ids: Tokens
    logprobs: Logprobs
    outlines: bytes


_DECODER = msgspec.msgpack.Decoder(list[Outline])


def stowed(trajectories: Sequence[Trajectory]) -> Bodies:
    """All tokens of some trajectories behind each other."""
    chains = [chain for trajectory in trajectories for chain in trajectory.chains]
    outlines = [
        Outline(
            tuple(len(chain.token_ids) for chain in trajectory.chains),
            tuple(chain.segments for chain in trajectory.chains),
            trajectory.turns,
        )
        for trajectory in trajectories
    ]
    nothing = np.empty(0, np.int32)
    return Bodies(
        np.concatenate([nothing, *(chain.token_ids for chain in chains)]),
        np.concatenate([nothing.astype(np.float32), *(chain.logprobs for chain in chains)]),
        msgspec.msgpack.encode(outlines),
    )


def header(trajectory: Trajectory, body: object, place: int) -> Parcel:
    """What the queue is given of a trajectory."""
    return Parcel(
        **{name: getattr(trajectory, name) for name in HEADER},
        chains=(),
        turns=(),
        body=body,
        place=place,
        tokens=trajectory.policy_tokens,
        known_versions=tuple(sorted(trajectory.versions)),
    )


def unstowed(bodies: Bodies) -> list[tuple[tuple[Chain, ...], tuple[Turn, ...]]]:
    """Chains and turns of each trajectory, as views."""
    start, found = 0, []
    for outline in _DECODER.decode(bodies.outlines):
        chains = []
        for length, segments in zip(outline.lengths, outline.segments, strict=True):
            end = start + length
            ids, logprobs = bodies.token_ids[start:end], bodies.logprobs[start:end]
            chains.append(Chain(token_ids=ids, logprobs=logprobs, segments=segments))
            start = end
        found.append((tuple(chains), outline.turns))
    return found


async def opened(trajectories: Iterable[Trajectory]) -> list[Trajectory]:
    """The same with their tokens, each body fetched once."""
    given = [*trajectories]
    bodies = {each.body: None for each in given if isinstance(each, Parcel)}
    found = {body: unstowed(await fetched(body)) for body in bodies}
    return [_whole(each, found) if isinstance(each, Parcel) else each for each in given]


def _whole(parcel: Parcel, found: dict[object, list[tuple[tuple[Chain, ...], tuple[Turn, ...]]]]) -> Trajectory:
    chains, turns = found[parcel.body][parcel.place]
    if parcel.last_reward is not None:
        turns = (*turns[:-1], but(turns[-1], reward=parcel.last_reward))
    return Trajectory(**{name: getattr(parcel, name) for name in HEADER}, chains=chains, turns=turns)
