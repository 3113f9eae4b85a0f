"""Held-out success in the course of a run: when it is looked at, who is told, when it is enough.

Promises: what a validation found is told as soon as it is there, under the step that it is of: to whoever watches, to
the metrics and trackers, and to the checkpoint of that step, whose score it is. A checkpoint whose validation goes on
aside stays until that has ended. A validation aside is waited for before the next one begins; one that is broken off
has gone when `end` returns, or is told not to have.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from windrow.pipelines.config import Agentic, Rlvr
from windrow.pipelines.evaluation import evaluate
from windrow.pipelines.playing import Playing, success_at
from windrow.pipelines.watching import Evaluation, Watcher
from windrow.store.checkpoints import Checkpoints
from windrow.types import to_plain

log = logging.getLogger(__name__)

CURVE = "curve"
"""What a checkpoint calls the validations up to its step."""
END_S = 30.0
"""How long a validation that is broken off may take to end."""

Tell = Callable[[int, Mapping[str, float]], object]
"""Writes values of a step down."""


class Validating:
    """The validations of a run."""

    def __init__(
        self, file: Agentic | Rlvr, players: Playing, checkpoints: Checkpoints, watcher: Watcher, tell: Tell
    ) -> None:
        self.curve: list[Evaluation] = []  # all and only those that came to their end, by step
        self._settings = file.validate
        self._steps = file.steps
        self._success_at = success_at(file)
        self._players = players
        self._checkpoints = checkpoints
        self._watcher = watcher
        self._tell = tell
        self._aside: asyncio.Task[None] | None = None  # the one that goes on while training does

    def is_due(self, step: int) -> bool:
        """Whether it is time to look, and nobody has before the run was broken off."""
        every = self._settings.every
        is_time = self._is_first_or_last(step) or (every > 0 and step % every == 0)
        return is_time and all(each.step != step for each in self.curve)

    async def look(self, step: int) -> None:
        """Success after so many updates; only begun if it is to be found aside."""
        await self.finish()
        settings = self._settings
        is_end = self._is_first_or_last(step)
        greedy = settings.greedy and (is_end or settings.stop_at is not None)
        if settings.how == "between" or is_end:
            await self.evaluate(step, greedy=greedy)
        else:
            self._aside = asyncio.create_task(self._evaluate_aside(step, greedy=greedy), name="validation")

    async def evaluate(self, step: int, *, greedy: bool) -> None:
        """Find it out now, and tell everybody."""
        await self._note(await evaluate(self._players.held_out, step, self._success_at, greedy=greedy))

    async def finish(self) -> None:
        """Wait for one that goes on aside; nothing is suspended meanwhile, or nobody would play it."""
        if self._aside is not None:
            if not self._aside.done():
                await self._players.rollouts.resume()
            await self._aside
            self._aside = None

    async def end(self) -> None:
        """Break off one that goes on aside, and wait until it has gone."""
        task, self._aside = self._aside, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait({task}, timeout=END_S)
        if not task.done():
            log.warning("the validation aside did not end within %g s", END_S)
        elif not task.cancelled() and task.exception() is not None:
            log.warning("the validation aside failed: %s", task.exception())

    @property
    def is_enough(self) -> bool:
        """Success is as high as it was to be, in every way in which it was measured."""
        stop_at = self._settings.stop_at
        return stop_at is not None and any(each.step > 0 and _lowest(each) >= stop_at for each in self.curve)

    async def score_checkpoints(self) -> None:
        """Tell the checkpoints what was found since they were saved."""
        await asyncio.to_thread(score_checkpoints, self._checkpoints, tuple(self.curve))

    def _is_first_or_last(self, step: int) -> bool:
        return step in (0, self._steps)

    async def _evaluate_aside(self, step: int, *, greedy: bool) -> None:
        self._checkpoints.awaited.add(step)
        try:
            async with self._players.held_out.set_aside(self._settings.engines):
                found = await evaluate(self._players.held_out, step, self._success_at, greedy=greedy)
            await self._note(found)
        finally:
            self._checkpoints.awaited.discard(step)

    async def _note(self, found: Evaluation) -> None:
        known = next((each.metrics for each in self.curve if each.step == found.step), {})
        others = [each for each in self.curve if each.step != found.step]
        self.curve = sorted([*others, found], key=lambda each: each.step)
        try:
            await self.score_checkpoints()
        finally:  # it was found, even if the run is broken off just now
            new = {name: value for name, value in found.metrics.items() if known.get(name) != value}
            self._tell(found.step, new)
            self._watcher.evaluated(found)


def score_of(curve: Sequence[Evaluation], step: int) -> float | None:
    """How good a checkpoint of a step is; None if nobody has looked."""
    return next((each.success for each in curve if each.step == step), None)


def score_checkpoints(checkpoints: Checkpoints, curve: Sequence[Evaluation]) -> None:
    """Tell each checkpoint the validations up to its step, and with its own its score; those that know are left."""
    for step, known in {each.step: each.meta.get(CURVE, ()) for each in checkpoints.known()}.items():
        seen = to_plain([each for each in curve if each.step <= step])
        if any(each not in known for each in seen):
            checkpoints.amend(step, score=score_of(curve, step), meta={CURVE: seen})


def _lowest(found: Evaluation) -> float:
    return found.success if found.greedy is None else min(found.success, found.greedy)
