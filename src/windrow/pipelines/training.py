"""The verbs of reinforcement learning: what a loop asks for, step by step.

Promises: a run is a folder, and whatever it needs to go on is saved there in one cut: weights, optimizer, random
numbers, and what the scheduler had played, half played and handed out. Weights are confirmed by the engines before
anything is sampled with them. Training happens on a thread of its own, so that episodes go on meanwhile as far as the
bound on staleness lets them. Whoever watches and whoever tracks can disturb nothing.

The loops themselves are in `agentic` and `rlvr`.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, TypeVar

from windrow.cluster.mapping import Layout
from windrow.engines.torch.spells import Activity
from windrow.observe.trackers import Trackers, open_trackers
from windrow.pipelines.config import Agentic, Rlvr
from windrow.pipelines.evaluation import evaluate
from windrow.pipelines.grounds import Ground, open_ground
from windrow.pipelines.learning import Learning, learning
from windrow.pipelines.playing import Playing, playing, success_at
from windrow.pipelines.problems import Problems
from windrow.pipelines.timeline import Span, Timeline
from windrow.pipelines.turns import Turns
from windrow.pipelines.watching import Evaluation, Glance, StepReport, Watcher
from windrow.protocol import DataProto
from windrow.rollout.summary import ledger_json
from windrow.store.checkpoints import Checkpoint
from windrow.store.run import RunFolder
from windrow.train.estimate import estimate
from windrow.train.weights import deliver
from windrow.trajectory import Trajectory
from windrow.types import Value, from_plain, to_plain

log = logging.getLogger(__name__)

T = TypeVar("T")

SMOOTH = 0.2
"""How much the last step counts in what is said about the time left."""


class Outcome(Value, frozen=True, kw_only=True, gc=True):
    """What a run came to."""

    before: Evaluation
    after: Evaluation
    curve: tuple[Evaluation, ...]
    steps: int
    seconds: float
    """From the beginning of reinforcement learning to its end, evaluations included."""
    ledger: dict[str, object]
    timeline: tuple[Span, ...] = ()
    """Who used which device when, in the last steps."""
    overlap: int | None = None
    """Held-out problems that were trained on as well; None if environments do not say what their problems are."""


class Training:
    """A run while it goes on."""

    def __init__(
        self,
        file: Agentic | Rlvr,
        run: RunFolder,
        watcher: Watcher,
        checkpoint: Checkpoint | None = None,
        ground: Ground | None = None,
    ) -> None:
        """`ground` is closed with the run; None: what the file asks for is opened with it."""
        self.file = file
        self.run = run
        self._watcher = watcher
        self._checkpoint = checkpoint
        self._first = 0 if checkpoint is None else checkpoint.step
        self._given_ground = ground
        self._ground: Ground
        self._learning: Learning
        self._players: Playing | None = None  # from the moment on at which they are there
        self._trackers: Trackers
        self._problems = Problems()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="windrow-train")
        self._success_at = success_at(file)
        self._curve: list[Evaluation] = []
        self._validating: asyncio.Task[None] | None = None
        self._doing = "getting ready"
        self._at = self._first  # updates made
        self._untrained: int | None = None  # the batch that was handed out last, until it counts as trained
        self._noted: dict[str, float] = {}  # numbers that belong to the step that is reported next
        self._asked_for = self._first  # the step of the last batch
        self._lent_at: float | None = None  # since when engines have lent their devices
        lent = lent_engines(file.layout)
        self._timeline = Timeline(lent)
        self._turns = Turns(file.layout.shared, lent, self._look)
        self._pace = 0.0  # seconds per step
        self._began = self._step_began = self._learn_began = time.monotonic()
        self._busy = 0.0  # seconds that the engines had computed at the last look

    # life

    async def __aenter__(self) -> Self:
        self._ground = self._given_ground or open_ground(self.file)
        try:
            await self._get_ready()
        except BaseException:
            self._thread.shutdown(wait=True)
            self._ground.close()
            raise
        return self

    async def _get_ready(self) -> None:
        file = self.file
        self._trackers = open_trackers(file.trackers, self.run.path, self._first or None)
        start = self._ground.trainers(file.layout)
        self._learning = await learning(
            file, self._watcher, self._checkpoint, self._off_loop, self._problems.train_on, start
        )
        made = self._learning
        # a run that goes on gives them its weights first
        self._players = playing(file, made.model, made.codec, 0, self._ground.devices)
        self._playing.rollouts.listeners += [self._problems.train_on, self._record]
        self._playing.held_out.listeners.append(self._problems.validate_on)
        if self._checkpoint is not None:
            self._playing.rollouts.restore(self._checkpoint.path("scheduler").read_bytes())
            self._curve = from_plain(self._checkpoint.meta["curve"], list[Evaluation])
        await self._turns.hand_to("generation")
        await self._playing.rollouts.initialize()
        self._began = time.monotonic() - (self._checkpoint.meta["seconds"] if self._checkpoint is not None else 0.0)

    async def __aexit__(self, kind: type[BaseException] | None, _: object, __: TracebackType | None) -> None:
        try:
            if kind is not None and issubclass(kind, asyncio.CancelledError):
                await self._save_what_there_is()
        finally:
            if self._validating is not None:
                self._validating.cancel()
            await self._playing.close()
            self._learning.close()
            self._thread.shutdown(wait=True)
            self._ground.close()
            self._trackers.close()

    # the verbs

    def steps(self) -> Iterator[int]:
        """How many updates were made, from the first time round to the last."""
        yield from range(self._first, self.file.steps + 1)

    async def suspend(self) -> None:
        """Nothing is generated from here until the next batch is asked for."""
        self._step_began = time.monotonic()
        if self._at > 0:
            await self._off_loop(self._learning.pack, self._at)  # while episodes still go on
        await self._playing.rollouts.suspend()

    async def update_weights(self, step: int) -> None:
        """Engines take what was trained, and confirm it."""
        self._doing = "updating weights"
        rollouts = self._playing.rollouts
        packed = self._learning.packed
        if packed is not None:
            assert packed.version == step, "weights are packed after each update"
            began = _now()
            self._note(await deliver(packed, rollouts.update_weights))
            self._timeline.note("weights", began, _now())
        if self._untrained is not None:
            await rollouts.mark_trained(self._untrained)
            self._untrained = None

    async def save(self, step: int) -> None:
        """One consistent cut, if one is due."""
        every = self.file.save.every
        is_due = step == self.file.steps or (every > 0 and step % every == 0)
        if is_due and step > self._first:
            await self._save(step)

    async def validate(self, step: int) -> None:
        """Success on held-out tasks, if it is time to look."""
        settings = self.file.validate
        first_or_last = step in (0, self.file.steps)
        if not first_or_last and (settings.every == 0 or step % settings.every):
            return
        if self._curve and self._curve[-1].step == step:
            return  # it was made before the run was broken off
        await self._finish_validating()
        self._doing = "validating"
        greedy = settings.greedy and (first_or_last or settings.stop_at is not None)
        if settings.how == "between" or first_or_last:
            await self._evaluate(step, greedy=greedy)
        else:
            self._validating = asyncio.create_task(self._evaluate_aside(step, greedy=greedy), name="validation")

    def is_over(self, step: int) -> bool:
        """All steps are done, or held-out success is as high as it was to be."""
        stop_at = self.file.validate.stop_at
        reached = [
            each
            for each in self._curve
            if stop_at is not None and each.step > 0 and min(each.success, each.greedy or 0.0) >= stop_at
        ]
        return step >= self.file.steps or bool(reached)

    async def get_batch(self, step: int) -> DataProto | None:
        """The next batch; None if no task is left."""
        self._doing = "collecting"
        self._turns.check("generation")
        self._asked_for = step
        size = self.file.rollout.rollout_batch_size
        batch = await self._playing.rollouts.get_batch(DataProto(meta_info={"global_step": step}), size)
        if batch is not None:
            self._untrained = batch.meta_info["batch_id"]
        return batch

    async def estimate(self, batch: DataProto) -> DataProto:
        """How good each token was, with whatever that takes: a reference, values, the trainer's own numbers."""
        self._doing = "estimating"
        self._turns.check("training")
        self._learn_began = time.monotonic()
        return await self._off_loop(self._estimate, batch)

    async def train(self, step: int, batch: DataProto) -> None:
        """New weights."""
        self._doing = "training"
        self._turns.check("training")
        metrics = await self._off_loop(self._learning.train, batch)
        await self._turns.check_quiet()
        self._note({"run/learn_s": time.monotonic() - self._learn_began})
        self._timeline.note("training", self._learn_began, time.monotonic())
        await self._note_activity()
        self._at = step + 1
        self._report(step, batch, metrics)

    async def shrink(self) -> None:
        """Generation gives up the devices that training shares with it; if it has no others, it pauses."""
        layout = self.file.layout
        if layout.kind == "overlapping":
            self._note(await self._playing.rollouts.shrink_sampler([*layout.shared]))
        elif layout.kind == "colocated":
            await self._playing.rollouts.suspend()
        await self._turns.hand_to("training")
        self._lent_at = _now()

    async def expand(self) -> None:
        """Generation takes them again; after a pause the next batch wakes it."""
        if self._lent_at is not None:
            self._timeline.note("lent", self._lent_at, _now())
        await self._turns.hand_to("generation")
        if self._lent_at is not None and self.file.layout.kind == "overlapping":
            self._note(await self._playing.rollouts.expand_sampler([*self.file.layout.shared]))
        self._lent_at = None

    async def outcome(self) -> Outcome:
        """What it came to; whatever was saved last is the whole of it."""
        await self._finish_validating()
        if self._curve[-1].step != self._at or (self.file.validate.greedy and self._curve[-1].greedy is None):
            await self._evaluate(self._at, greedy=self.file.validate.greedy)
        if not self._is_saved(self._at):
            await self._save(self._at)
        seconds = time.monotonic() - self._began
        await self._note_activity()
        await self._playing.close()
        return Outcome(
            before=self._curve[0],
            after=self._curve[-1],
            curve=tuple(self._curve),
            steps=self._at,
            seconds=seconds,
            ledger=ledger_json(self._playing.rollouts.ledger()),
            overlap=self._overlap(),
            timeline=tuple(self._timeline.spans()),
        )

    def glance(self) -> Glance:
        """What goes on right now."""
        scheduling = None if self._players is None else self._players.rollouts.scheduling()
        lane = None if scheduling is None else scheduling.lanes["val" if self._doing == "validating" else "train"]
        return Glance(
            doing=self._doing,
            in_flight=0 if lane is None else lane.attempts_playing,
            ready=0 if lane is None else lane.groups_ready * self.file.collecting.train_env_manager.group_size,
            wanted=self.file.rollout.rollout_batch_size,
        )

    # inside

    @property
    def _playing(self) -> Playing:
        assert self._players is not None, "enter the run first"
        return self._players

    async def _look(self) -> Mapping[str, Activity]:
        """What the engines have done so far."""
        return await self._off_loop(self._playing.activity)

    async def _note_activity(self) -> None:
        asked = _now()
        self._timeline.look(await self._look(), asked, _now())

    def _estimate(self, batch: DataProto) -> DataProto:
        train = self.file.train
        return estimate(self._learning.look_back(batch), train.estimator, train.loss)

    async def _evaluate(self, step: int, *, greedy: bool) -> None:
        found = await evaluate(self._playing.held_out, step, self._success_at, greedy=greedy)
        self._curve = [*(each for each in self._curve if each.step != step), found]
        self._watcher.evaluated(found)
        values = {"validation/success": found.success, "validation/score": found.score}
        if found.greedy is not None:
            values["validation/greedy"] = found.greedy
        values |= {f"validation/success/{name}": value for name, value in found.domains.items()}
        self._note(values)

    async def _finish_validating(self) -> None:
        """Wait for a validation that goes on aside; nothing is suspended meanwhile, or nobody would play it."""
        if self._validating is not None:
            self._doing = "validating"
            if not self._validating.done():
                await self._playing.rollouts.resume()
            await self._validating
            self._validating = None

    async def _evaluate_aside(self, step: int, *, greedy: bool) -> None:
        async with self._playing.held_out.set_aside(self.file.validate.engines):
            await self._evaluate(step, greedy=greedy)

    async def _save(self, step: int) -> None:
        """Everything that is needed to go on after so many updates."""
        self._doing = "saving"
        began = time.monotonic()
        snapshot = self._playing.rollouts.snapshot()
        parts = {**self._learning.parts(), "scheduler": lambda path: path.write_bytes(snapshot)}
        seen = [each for each in self._curve if each.step <= step]
        score = seen[-1].success if seen and seen[-1].step == step else None
        meta = {
            "curve": to_plain(seen),
            "seconds": time.monotonic() - self._began,
            "vocabulary": self._learning.model.config.vocab_size,
        }
        await self._off_loop(lambda: self.run.checkpoints.save(step, parts, score=score, meta=meta))
        self._note({"run/save_s": time.monotonic() - began})

    async def _save_what_there_is(self) -> None:
        """The run was broken off: what was trained since the last checkpoint is kept as well."""
        await self._off_loop(lambda: None)  # a step that is being trained ends first
        if not self._is_saved(self._at):
            if self._untrained is not None and self._asked_for < self._at:
                await self._playing.rollouts.mark_trained(self._untrained)
            await self._save(self._at)

    def _is_saved(self, step: int) -> bool:
        return step == self._first or step in self.run.checkpoints.steps()

    def _overlap(self) -> int | None:
        found = self._problems.overlap
        if found:
            log.warning("%d held-out problems were trained on as well, so validation says too much", found)
        return found

    def _record(self, trajectories: Sequence[Trajectory]) -> None:
        """Write some of a step's trajectories down."""
        if self.file.save.trajectories:
            self.run.record(self._asked_for, trajectories[: self.file.save.trajectories])

    def _report(self, step: int, batch: DataProto, metrics: dict[str, float]) -> None:
        """Write down, track and tell what a step was."""
        seconds = time.monotonic() - self._step_began
        self._pace = seconds if not self._pace else (1 - SMOOTH) * self._pace + SMOOTH * seconds
        busy = self._playing.busy_seconds()
        found = {**batch.meta_info["metrics"], **metrics, **self._noted}
        self._noted = {}
        tokens = float(found.get("batch/policy_tokens_total", 0.0))
        report = StepReport(
            step=step + 1,
            steps=self.file.steps,
            success=float(found.get("episode/success", 0.0)),
            reward=float(found.get("episode/score/mean", 0.0)),
            lag=float(found.get("batch/lag_versions/mean", 0.0)),
            tokens_per_s=tokens / seconds,
            utilisation=(busy - self._busy) / (seconds * len(self.file.layout.engines)),
            seconds=seconds,
            seconds_left=self._pace * (self.file.steps - step - 1),
            metrics=found,
        )
        self._busy = busy
        self.run.metrics.append(step + 1, found)
        self._trackers.log(step + 1, found)
        self._watcher.stepped(report)

    def _note(self, values: Mapping[str, object]) -> None:
        """Numbers that belong to the step that is reported next."""
        self._noted |= {name: value for name, value in values.items() if isinstance(value, int | float)}

    async def _off_loop(self, work: Callable[..., T], *args: Any) -> T:  # noqa: ANN401 -- handed over as they are
        """Something that takes long, on the trainer's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)


def lent_engines(layout: Layout) -> list[str]:
    """The engines whose devices training shares, by the names that their cluster gives them."""
    shared = set(layout.shared)
    return [f"engine-{rank}" for rank, devices in enumerate(layout.engines) if shared & {*devices}]


def _now() -> float:
    """The clock that trajectories tell their times by."""
    return time.monotonic()
