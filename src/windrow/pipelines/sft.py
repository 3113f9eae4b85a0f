"""Supervised fine-tuning: a policy clones what demonstrations or recorded trajectories show.

Promises: every step is written down and tracked. A checkpoint holds the model and all that the next step depends on, so
a run that goes on from it comes to the same numbers; what was learnt until a run is broken off is saved. Validation is
between steps, before the first, after the last and every `validate.every`, by engines that have the weights of that
step. Learning happens on a thread of its own.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar

from windrow.cluster.local import ResourceManager
from windrow.errors import TrainError
from windrow.observe.trackers import Trackers, open_trackers
from windrow.pipelines.config import Cloning
from windrow.pipelines.evaluation import evaluate
from windrow.pipelines.grounds import Ground, open_ground
from windrow.pipelines.learning import ADAPTER, MODEL, TRAINER, OffLoop, language, pupil
from windrow.pipelines.playing import playing, save_adapter, save_model, success_at
from windrow.pipelines.problems import Problems
from windrow.pipelines.training import Outcome
from windrow.pipelines.warm_start import lessons
from windrow.pipelines.watching import Evaluation, Watcher
from windrow.rollout.summary import ledger_json
from windrow.store.checkpoints import Checkpoint
from windrow.store.run import RunFolder
from windrow.text import ChatCodec
from windrow.types import but, described, from_plain, to_plain

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from windrow.train.learner import Learner
    from windrow.train.supervised import Demonstration

T = TypeVar("T")


async def clone_behaviour(
    file: Cloning,
    run: RunFolder,
    watcher: Watcher,
    ground: Ground | None = None,
    checkpoint: Checkpoint | None = None,
    ready: Callable[[], object] = lambda: None,
) -> Outcome:
    """Look at what a policy can do, teach it what was demonstrated, and look again.

    `ground` is closed with the run; None: what the file asks for is opened with it. `ready` is called when everything
    could be made or loaded, before anything is changed.
    """
    first = 0 if checkpoint is None else checkpoint.step
    with ThreadPoolExecutor(1, thread_name_prefix="windrow-train") as thread, ground or open_ground(file) as place:

        async def off_loop(work: Callable[..., T], *args: Any) -> T:  # noqa: ANN401 -- handed over as they are
            return await asyncio.get_running_loop().run_in_executor(thread, work, *args)

        trackers = open_trackers(file.trackers, run.path, first or None, described(file))
        try:
            taught = await _pupil(file, watcher, checkpoint, off_loop)
            ready()
            return await Course(file, run, watcher, taught, trackers, place.devices, off_loop).finish()
        finally:
            trackers.close()


class Pupil:
    """Who learns, in which language, and from what."""

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerFast",
        model: "PreTrainedModel",
        learner: "Learner",
        rows: "list[Demonstration]",
    ) -> None:
        self.tokenizer = tokenizer
        self.codec = ChatCodec(tokenizer)
        self.model = model
        self.learner = learner
        self.rows = rows
        self.problems = Problems()
        self.meta: Mapping[str, Any] = {}  # what its checkpoint says beside; anything that JSON has

    def parts(self) -> dict[str, Callable[[Path], object]]:
        """What a checkpoint holds of it."""
        from windrow.train.weights import engine_weights

        def model(path: Path) -> None:
            save_model(path, self.model, engine_weights(self.model), self.tokenizer)

        def adapter(path: Path) -> None:
            save_adapter(path, self.model, self.learner.state_dict()["weights"])

        found: dict[str, Callable[[Path], object]] = {MODEL: model, TRAINER: self._save}
        return found | ({ADAPTER: adapter} if type(self.model).__module__.startswith("peft.") else {})

    def load(self, checkpoint: Checkpoint) -> None:
        """Go on from there."""
        import torch

        state = torch.load(checkpoint.path(TRAINER), weights_only=True)
        self.learner.load_state_dict(state["learner"])
        torch.set_rng_state(state["random"])
        self.meta = checkpoint.meta

    def _save(self, path: Path) -> None:
        import torch

        torch.save({"learner": self.learner.state_dict(), "random": torch.get_rng_state()}, path)


async def _pupil(file: Cloning, watcher: Watcher, checkpoint: Checkpoint | None, off_loop: OffLoop) -> Pupil:
    """Whoever learns, as it begins or as a checkpoint left it."""
    from windrow.train.models import load_model
    from windrow.train.supervised import demonstrations

    lesson = file.demonstrations
    spoken = await language(file, lesson, checkpoint)
    model = await off_loop(load_model, file.model, file.seed, spoken.vocabulary)
    learner = await off_loop(pupil, file.model, model, lesson.supervised)
    watcher.stage("demonstrations", 0, lesson.episodes)
    played = await lessons(file.collecting.train_env_manager.by_tag(), ChatCodec(spoken.tokenizer), lesson, file.seed)
    watcher.stage("demonstrations", len(played), len(played))
    made = Pupil(spoken.tokenizer, model, learner, demonstrations(played))
    made.problems.train_on(played)
    if checkpoint is not None:
        await off_loop(made.load, checkpoint)
    return made


class Course:
    """A run while it goes on."""

    def __init__(
        self,
        file: Cloning,
        run: RunFolder,
        watcher: Watcher,
        taught: Pupil,
        trackers: Trackers,
        devices: ResourceManager,
        off_loop: OffLoop,
    ) -> None:
        self._file = file
        self._run = run
        self._watcher = watcher
        self._pupil = taught
        self._trackers = trackers
        self._devices = devices
        self._off_loop = off_loop
        self._first = taught.learner.steps
        self._curve = from_plain(taught.meta.get("curve", []), list[Evaluation])
        self._began = time.monotonic() - float(taught.meta.get("seconds", 0.0))
        self._ledger: dict[str, object] = {}

    async def finish(self) -> Outcome:
        """Learn until all steps are taken, or held-out success is as high as it was to be."""
        try:
            await self._pause()
            while self._step < self._steps and not self._is_good_enough():
                await self._learn(self._next_stop())
                await self._pause()
            if not self._is_saved():
                await self._save()
        except asyncio.CancelledError:
            await self._save_what_there_is()
            raise
        return Outcome(
            before=self._curve[0],
            after=self._curve[-1],
            curve=tuple(self._curve),
            steps=self._step,
            seconds=time.monotonic() - self._began,
            ledger=self._ledger,
            overlap=self._pupil.problems.told_overlap(),
        )

    # inside

    @property
    def _step(self) -> int:
        return self._pupil.learner.steps

    @property
    def _steps(self) -> int:
        return self._file.demonstrations.supervised.steps

    def _next_stop(self) -> int:
        """The step after which something is due."""
        every = [each for each in (self._file.save.every, self._file.validate.every) if each]
        return min([self._steps, *((self._step // each + 1) * each for each in every)])

    async def _learn(self, until: int) -> None:
        """Take steps."""
        from windrow.train.supervised import supervise

        settings, given_up = self._file.demonstrations.supervised, Event()

        def told(step: int, metrics: dict[str, float]) -> None:
            self._report(step, metrics)
            self._watcher.stage("cloning", step, settings.steps, f"loss {metrics['supervised/loss']:.3f}")
            if given_up.is_set():
                raise TrainError(f"the run was given up after {step} steps")

        try:
            taken = but(settings, steps=until)
            await self._off_loop(supervise, self._pupil.learner, self._pupil.rows, taken, self._file.seed, told)
        finally:
            given_up.set()  # nobody waits for the steps that are left

    async def _pause(self) -> None:
        """Whatever is due between two steps."""
        validate, save, step = self._file.validate, self._file.save, self._step
        first_or_last = step in (0, self._steps)
        is_seen = any(each.step == step for each in self._curve)
        if not is_seen and (first_or_last or (validate.every and step % validate.every == 0)):
            await self._look(greedy=validate.greedy and (first_or_last or validate.stop_at is not None))
        if not self._is_saved() and (step == self._steps or (save.every and step % save.every == 0)):
            await self._save()

    async def _look(self, *, greedy: bool) -> None:
        """Success on held-out tasks, and what became of every attempt at them."""
        file = self._file
        players = playing(file, self._pupil.model, self._pupil.codec, self._step, self._devices)
        players.held_out.listeners.append(self._pupil.problems.validate_on)
        try:
            found = await evaluate(players.held_out, self._step, success_at(file), greedy=greedy)
        finally:
            await players.close()
        self._ledger = ledger_json(players.held_out.ledger())
        self._curve.append(found)
        self._watcher.evaluated(found)
        values = {"validation/success": found.success, "validation/score": found.score}
        if found.greedy is not None:
            values["validation/greedy"] = found.greedy
        self._report(self._step, values | {f"validation/success/{tag}": each for tag, each in found.domains.items()})

    def _is_good_enough(self) -> bool:
        stop_at, last = self._file.validate.stop_at, self._curve[-1]
        least = last.success if last.greedy is None else min(last.success, last.greedy)
        return stop_at is not None and last.step > 0 and least >= stop_at

    def _report(self, step: int, values: dict[str, float]) -> None:
        self._run.metrics.append(step, values)
        self._trackers.log(step, values)

    async def _save(self) -> None:
        step, last = self._step, self._curve[-1] if self._curve else None
        score = last.success if last is not None and last.step == step else None
        meta = {
            "curve": to_plain(self._curve),
            "seconds": time.monotonic() - self._began,
            "vocabulary": self._pupil.model.config.vocab_size,
        }
        parts = self._pupil.parts()
        await self._off_loop(lambda: self._run.checkpoints.save(step, parts, score=score, meta=meta))

    async def _save_what_there_is(self) -> None:
        """The run was broken off: what was learnt since the last checkpoint is kept as well."""
        await self._off_loop(lambda: None)  # a step that is being taken ends first
        if not self._is_saved():
            await self._save()

    def _is_saved(self) -> bool:
        return self._step == self._first or self._step in self._run.checkpoints.steps()
