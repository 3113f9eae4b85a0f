"""The way to an engine while its wire is broken: what was sent is interrupted, what was not is sent later."""

import asyncio

import numpy as np
import pytest

pytest.importorskip("ray")

from windrow.cluster.ray.hosts import Remote
from windrow.cluster.ray.wires import Address
from windrow.requests import Request, Sampling
from windrow.rollout.ray.engines import Line, Post


class Wire:
    """Remembers what was said."""

    def __init__(self) -> None:
        self.posts: list[Post] = []

    def send(self, message: object) -> None:
        assert isinstance(message, Post)
        self.posts.append(message)

    def close(self) -> None: ...


def request(name: str) -> Request:
    return Request(id=name, prompt=np.zeros(1, np.int32), sampled=0, sampling=Sampling(), seed=0, family="")


def test_a_wire_that_breaks_interrupts_what_was_sent_and_nothing_else():
    async def main() -> None:
        line = Line(Remote("engine-0", None), "player-0", Address("here", 1, b""))
        first, second = Wire(), Wire()
        line._wire = first
        async with line.ask(request("sent")) as sent:
            await asyncio.sleep(0)  # what is due is sent
            line._wire = None
            async with line.ask(request("unsent")) as unsent:
                async with line.ask(request("given up")):
                    pass
                line._interrupt()
                assert [heard.is_last for heard in sent.heard] == [True]
                assert sent.heard[0].chunk is not None
                assert sent.heard[0].chunk.finish == "interrupted"
                assert unsent.heard == []
                line._wire = second
                line._send()
        told = [([each.id for each in post.requests], post.withdrawn) for post in first.posts + second.posts]
        assert told == [(["sent"], []), (["unsent"], [])]

    asyncio.run(main())
