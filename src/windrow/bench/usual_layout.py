"""The usual layout on Ray, to compare with: one call for everything.

An episode asks a queue for an id, and for every turn a router for admission, an engine for tokens, and the router again
to give its place back; then it puts its trajectory, padded, into the queue, which hands out what it has. Written as
kindly as the layout allows: everything is asynchronous, ids and places are handed out at once, a batch is taken as soon
as there is one.
"""

import asyncio
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Padded = dict[str, NDArray[Any]]

AT_ONCE = 10_000
"""Calls that may wait in an actor; when episodes that wait for an id took all of them, none could be put."""


class _Queue:
    def __init__(self) -> None:
        self._next = 0
        self._done: list[Padded] = []
        self._news = asyncio.Event()

    async def lease(self) -> int:
        self._next += 1
        return self._next

    async def put(self, _: int, trajectory: Padded) -> None:
        self._done.append(trajectory)
        self._news.set()

    async def get_batch(self, n: int) -> list[Padded]:
        while len(self._done) < n:
            self._news.clear()
            await self._news.wait()
        batch, self._done = self._done[:n], self._done[n:]
        return batch

    async def done(self) -> int:
        return len(self._done)


class _Router:
    def __init__(self, engines: int) -> None:
        self._load = [0] * engines

    async def admit(self, episode: int) -> int:
        engine = episode % len(self._load)
        self._load[engine] += 1
        return engine

    async def release(self, engine: int) -> None:
        self._load[engine] -= 1


class _Engine:
    async def generate(self, prompt: NDArray[np.int32], tokens: int) -> NDArray[np.int32]:
        return np.full(tokens, prompt[0], np.int32)


class _Client:
    """Many episodes at once."""

    def __init__(self, queue: Any, router: Any, engines: list[Any], turns: int, said: int, width: int) -> None:  # noqa: ANN401 -- Ray's handles have no type
        self._queue, self._router, self._engines = queue, router, engines
        self._turns, self._said, self._width = turns, said, width
        self._may_go = asyncio.Event()

    async def go(self) -> None:
        self._may_go.set()

    async def hold(self) -> None:
        """Make no more calls; episodes stay where they are."""
        self._may_go.clear()

    async def run(self, slots: int) -> None:
        async with asyncio.TaskGroup() as group:
            for slot in range(slots):
                group.create_task(self._play_on(), name=f"slot {slot}")

    async def _play_on(self) -> None:
        while True:
            episode = await self._called(self._queue.lease)
            await self._called(self._queue.put, episode, self._padded(await self._play(episode)))

    async def _play(self, episode: int) -> NDArray[np.int32]:
        tokens = np.full(self._said, 46, np.int32)
        for _ in range(self._turns):
            engine = await self._called(self._router.admit, episode)
            said = await self._called(self._engines[engine].generate, tokens, self._said)
            await self._called(self._router.release, engine)
            tokens = np.concatenate([tokens, said, np.full(self._said, 46, np.int32)])
        return tokens

    async def _called(self, method: Any, *arguments: object) -> Any:  # noqa: ANN401 -- as above
        if not self._may_go.is_set():
            await self._may_go.wait()
        return await method.remote(*arguments)

    def _padded(self, tokens: NDArray[np.int32]) -> Padded:
        ids = np.zeros(self._width, np.int64)
        ids[: len(tokens)] = tokens[: self._width]
        mask = (np.arange(self._width) < len(tokens)).astype(np.int64)
        return {
            "input_ids": ids,
            "attention_mask": mask,
            "position_ids": np.arange(self._width),
            "response_mask": mask.astype(bool),
            "prompt_mask": ~mask.astype(bool),
            "scores": np.zeros(self._width, np.float32),
        }


class Usual:
    """All of it, at work."""

    def __init__(self, episodes: int, turns: int, said: int, width: int, clients: int, engines: int) -> None:
        self._batch = episodes
        self._queue: Any = _started(_Queue)
        router: Any = _started(_Router, engines)
        fleet: list[Any] = [_started(_Engine) for _ in range(engines)]
        self._clients: list[Any] = [
            _started(_Client, self._queue, router, fleet, turns, said, width) for _ in range(clients)
        ]
        self._actors = [self._queue, router, *fleet, *self._clients]

    async def __aenter__(self) -> Self:
        for client in self._clients:
            client.run.remote(self._batch // len(self._clients))
        return self

    async def __aexit__(self, *_: object) -> None:
        import ray

        for actor in reversed(self._actors):  # those who call before those who are called
            ray.kill(actor)

    async def collect(self, wanted: int) -> int:
        """At least so many trajectories, batch after batch; how many there were."""
        for client in self._clients:
            await client.go.remote()
        got = 0
        while got < wanted:
            batch = await self._queue.get_batch.remote(self._batch)
            stacked = {key: np.stack([each[key] for each in batch]) for key in batch[0]}
            got += len(stacked["input_ids"])
        return got

    async def pause(self) -> None:
        """Let nothing go on while others are measured; what is under way waits where it is, and what is done stays."""
        for client in self._clients:
            await client.hold.remote()


def _started(kind: type[object], *arguments: object) -> Any:  # noqa: ANN401 -- Ray's handles have no type
    import ray

    actor: Any = ray.remote(kind)
    return actor.options(num_cpus=0, max_concurrency=AT_ONCE).remote(*arguments)
