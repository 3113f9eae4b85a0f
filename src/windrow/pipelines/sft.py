"""Supervised fine-tuning: a policy clones what demonstrations or recorded trajectories show."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from windrow.pipelines.config import Cloning
from windrow.pipelines.evaluation import evaluate
from windrow.pipelines.grounds import Ground, open_ground
from windrow.pipelines.learning import MODEL, warm_up
from windrow.pipelines.playing import Playing, playing, save_model, success_at
from windrow.pipelines.problems import Problems
from windrow.pipelines.training import Outcome
from windrow.pipelines.warm_start import make_tokenizer
from windrow.pipelines.watching import Evaluation, Watcher
from windrow.rollout.summary import ledger_json
from windrow.store.run import RunFolder
from windrow.text import ChatCodec

T = TypeVar("T")


async def clone_behaviour(file: Cloning, run: RunFolder, watcher: Watcher, ground: Ground | None = None) -> Outcome:
    """Look at what a policy can do, teach it what was demonstrated, and look again.

    `ground` is closed with the run; None: what the file asks for is opened with it.
    """
    from windrow.train.models import load_model
    from windrow.train.networks import Policy
    from windrow.train.weights import engine_weights

    lesson, steps = file.demonstrations, file.demonstrations.supervised.steps
    with ThreadPoolExecutor(1, thread_name_prefix="windrow-train") as thread, ground or open_ground(file) as place:

        async def off_loop(work: Callable[..., T], *args: Any) -> T:  # noqa: ANN401 -- handed over as they are
            return await asyncio.get_running_loop().run_in_executor(thread, work, *args)

        began = time.monotonic()
        problems = Problems()
        tokenizer = await make_tokenizer(file.model, file.collecting.train_env_manager.by_tag(), lesson)
        codec = ChatCodec(tokenizer)
        model = await off_loop(load_model, file.model, file.seed, len(tokenizer))
        before, _ = await _looked_at(playing(file, model, codec, 0, place.devices), 0, file, watcher, problems)
        metrics = await warm_up(file, Policy(model), codec, lesson, watcher, off_loop, problems.train_on)
        after, ledger = await _looked_at(playing(file, model, codec, 1, place.devices), steps, file, watcher, problems)
        run.metrics.append(steps, metrics)
        parts = {MODEL: lambda path: save_model(path, model, engine_weights(model), tokenizer)}
        await off_loop(lambda: run.checkpoints.save(steps, parts, score=after.success))
        return Outcome(
            before=before,
            after=after,
            curve=(before, after),
            steps=steps,
            seconds=time.monotonic() - began,
            ledger=ledger,
            overlap=problems.told_overlap(),
        )


async def _looked_at(
    players: Playing, step: int, file: Cloning, watcher: Watcher, problems: Problems
) -> tuple[Evaluation, dict[str, object]]:
    """Success on held-out tasks, and what became of every attempt at them."""
    players.held_out.listeners.append(problems.validate_on)
    try:
        found = await evaluate(players.held_out, step, success_at(file), greedy=file.validate.greedy)
        watcher.evaluated(found)
    finally:
        await players.close()
    return found, ledger_json(players.held_out.ledger())
