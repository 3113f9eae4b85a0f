"""How fast the embedded engine samples, how soon it stops, and what its cache saves.

The alternative to sampling is `generate` of transformers on the same weights, in batches as large as the engine's
capacity: it pads prompts on the left and goes on until the longest answer of a batch is complete. Tokens that nobody
asked for do not count on either side, and both say how likely each token was. The model is a small one, so that what is
measured is mostly the way to it.
"""

import asyncio
from collections.abc import Sequence
from contextlib import contextmanager
from functools import partial
from time import process_time
from typing import TYPE_CHECKING, Any

import numpy as np

from windrow.bench import Result, Say, alternate, compared, cpu_s
from windrow.requests import Request, Sampling, Tokens

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import PreTrainedModel

    from windrow.engines.torch import TorchEngine

WHAT = "the embedded torch engine: sampling, interrupting, turns with and without the cache"
CONCURRENCY = (1, 8, 32, 128)
BATCHES = 3
"""Requests per slot, on average."""
ROUNDS = 3
PROMPT = (8, 64)
ANSWER = (8, 128)
"""Shortest and longest, in tokens."""
INTERRUPTED = 32
"""Requests that run when everything is interrupted."""
EPISODES = 16
TURNS = 6
OBSERVATION = 60
ACTION = 8
LAYERS = 3
HOW = {"do_sample": True, "top_k": 0, "pad_token_id": 0, "output_logits": True, "return_dict_in_generate": True}
"""Plain sampling by transformers, with what is needed for log-probabilities."""


def run(say: Say) -> list[Result]:
    """Measure everything."""
    import torch

    torch.set_num_threads(1)
    results = []
    with asyncio.Runner() as runner:
        for slots in CONCURRENCY:
            say(f"sampling with {slots} at once, {ROUNDS} times each, in turns")
            results.append(_sampling(runner, slots))
        say("deterministic shapes, interruptions, turns")
        results += [_determinism(runner), *_interrupting(runner), _turns(runner)]
    return results


def workload(slots: int) -> list[Request]:
    """Ragged prompts and answers; the same ones for the same number of slots."""
    chance = np.random.default_rng(slots)
    count = max(6, BATCHES * slots)
    sizes, answers = chance.integers(*PROMPT, count, endpoint=True), chance.integers(*ANSWER, count, endpoint=True)
    return [
        Request(
            id=f"r{number}",
            prompt=chance.integers(0, 250, size).astype(np.int32),
            sampling=Sampling(max_tokens=int(answer)),
            seed=number,
        )
        for number, (size, answer) in enumerate(zip(sizes, answers, strict=True))
    ]


def generate(model: "PreTrainedModel", requests: Sequence[Request], slots: int) -> None:
    """The same by transformers: batch after batch, each as long as its longest answer."""
    import torch

    for first in range(0, len(requests), slots):
        batch = requests[first : first + slots]
        width = max(request.prompt.size for request in batch)
        ids = torch.zeros(len(batch), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, request in enumerate(batch):
            ids[row, width - request.prompt.size :] = torch.from_numpy(request.prompt)
            mask[row, width - request.prompt.size :] = 1
        longest = max(request.sampling.max_tokens for request in batch)
        with torch.inference_mode():
            said = model.generate(  # type: ignore[operator]  # transformers'
                ids, attention_mask=mask, max_new_tokens=longest, **HOW
            )
            model.compute_transition_scores(said.sequences, said.logits, normalize_logits=True)  # type: ignore[operator]


def _sampling(runner: asyncio.Runner, slots: int) -> Result:
    requests = workload(slots)
    tokens = sum(request.sampling.max_tokens for request in requests)
    plain = _model()
    with _engine(runner, capacity=slots) as engine:
        ours, theirs = alternate(
            ROUNDS,
            partial(_timed, runner, engine, requests),
            lambda: cpu_s(lambda: generate(plain, requests, slots)),
        )
    what = f"tokens sampled, {slots} at once, ragged lengths (alternative: generate in batches of {slots})"
    return compared(what, tokens / ours, tokens / theirs, "tokens/s")


def _determinism(runner: asyncio.Runner) -> Result:
    slots = INTERRUPTED
    requests = workload(slots)
    tokens = sum(request.sampling.max_tokens for request in requests)
    with _engine(runner, capacity=slots, deterministic=True) as exact, _engine(runner, capacity=slots) as engine:
        ours, theirs = alternate(
            ROUNDS, partial(_timed, runner, exact, requests), partial(_timed, runner, engine, requests)
        )
    what = f"tokens sampled deterministically, {slots} at once (alternative: as fast as it can)"
    return compared(what, tokens / ours, tokens / theirs, "tokens/s")


def _interrupting(runner: asyncio.Runner) -> list[Result]:
    """Time until nothing is sampled any more and all partial answers are there."""
    requests = [
        Request(id=f"r{number}", prompt=np.arange(40, dtype=np.int32), sampling=Sampling(max_tokens=ANSWER[1]))
        for number in range(INTERRUPTED)
    ]
    plain = _model()
    with _engine(runner, capacity=INTERRUPTED, stream_every=8) as engine:
        ours, step, theirs = alternate(
            ROUNDS,
            lambda: runner.run(_interrupt(engine, requests)),
            lambda: _timed(runner, engine, requests) / ANSWER[1],
            lambda: cpu_s(lambda: generate(plain, requests, INTERRUPTED)),
        )
    busy = f"interrupting {INTERRUPTED} running requests"
    return [
        compared(f"{busy} (alternative: one token of each)", 1e3 * ours, 1e3 * step, "ms"),
        compared(f"{busy} (alternative: letting generate finish)", 1e3 * ours, 1e3 * theirs, "ms"),
    ]


async def _interrupt(engine: "TorchEngine", requests: Sequence[Request]) -> float:
    """CPU seconds of one suspension."""
    running = asyncio.Barrier(len(requests) + 1)
    async with asyncio.TaskGroup() as group:
        for request in requests:
            group.create_task(_listen(engine, request, running), name=request.id)
        await running.wait()
        began = process_time()
        await engine.suspend("interrupt")
        taken = process_time() - began
        await engine.resume()
    return taken


def _turns(runner: asyncio.Runner) -> Result:
    """Episodes of several turns; what is forgotten between turns is computed again."""
    with _engine(runner, capacity=EPISODES) as engine:
        ours, theirs = alternate(
            ROUNDS,
            lambda: runner.run(_play(engine, remember=True)),
            lambda: runner.run(_play(engine, remember=False)),
        )
    turns = EPISODES * TURNS
    what = f"turns, {TURNS} per episode, {OBSERVATION} tokens seen and {ACTION} said (alternative: without the cache)"
    return compared(what, turns / ours, turns / theirs, "turns/s")


async def _play(engine: "TorchEngine", *, remember: bool) -> float:
    """CPU seconds for some episodes, turn by turn together."""
    await _forget(engine)
    began = process_time()
    chance = np.random.default_rng(0)
    histories: list[Tokens] = [np.empty(0, dtype=np.int32) for _ in range(EPISODES)]
    for turn in range(TURNS):
        if not remember:
            await _forget(engine)
        asked = []
        for number, history in enumerate(histories):
            seen = chance.integers(0, 250, OBSERVATION).astype(np.int32)
            prompt = np.concatenate([history, seen])
            asked.append(Request(id=f"r{number}", prompt=prompt, sampling=Sampling(max_tokens=ACTION), seed=turn))
        said = await _answers(engine, asked)
        histories = [np.concatenate([one.prompt, answer]) for one, answer in zip(asked, said, strict=True)]
    return process_time() - began


async def _forget(engine: "TorchEngine") -> None:
    """Drop the whole cache."""
    await engine.release()
    await engine.restore()


def _timed(runner: asyncio.Runner, engine: "TorchEngine", requests: Sequence[Request]) -> float:
    """CPU seconds for all answers."""
    return cpu_s(lambda: runner.run(_answers(engine, requests)))


async def _answers(engine: "TorchEngine", requests: Sequence[Request]) -> list[Tokens]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_listen(engine, request), name=request.id) for request in requests]
    return [task.result() for task in tasks]


async def _listen(engine: "TorchEngine", request: Request, running: asyncio.Barrier | None = None) -> Tokens:
    """The whole answer; if there is a barrier, it is met after the first chunk."""
    parts = []
    async for chunk in engine.generate(request):
        parts.append(chunk.token_ids)
        if running is not None and len(parts) == 1:
            await running.wait()
    return np.concatenate(parts)


@contextmanager
def _engine(runner: asyncio.Runner, **options: Any) -> "Iterator[TorchEngine]":  # noqa: ANN401  # the engine's own
    from windrow.engines.torch import TorchEngine

    engine = TorchEngine("bench", _model(), **options)
    runner.run(engine.start())
    try:
        yield engine
    finally:
        runner.run(engine.close())


def _model() -> "PreTrainedModel":
    from windrow.tiny import tiny_model

    return tiny_model(layers=LAYERS, context=1024)
