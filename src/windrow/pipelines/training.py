"""The verbs of reinforcement learning: what a loop asks for, step by step.

Promises: a run is a folder, and whatever it needs to go on is saved there in one cut: weights, optimizer, random
numbers, and what the scheduler had played, half played and handed out. Weights are confirmed by the engines before
anything is sampled with them. Training happens on a thread of its own, so that episodes go on meanwhile as far as the
bound on staleness lets them. Whoever watches and whoever tracks can disturb nothing. What was opened for a run is
closed however it ends, also if it cannot begin; what it had trained until then is saved, unless training itself failed.

The loops themselves are in `agentic` and `rlvr`.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from windrow.cluster.mapping import Layout
from windrow.engines.torch.spells import Activity, Busy, busy_share
from windrow.errors import Refused, WindrowError
from windrow.observe.trackers import Trackers, open_trackers
from windrow.pipelines.config import Agentic, Rlvr
from windrow.pipelines.grounds import Ground, open_ground
from windrow.pipelines.learning import Learning, learning
from windrow.pipelines.playing import Playing, playing
from windrow.pipelines.problems import Problems
from windrow.pipelines.timeline import Span, Timeline
from windrow.pipelines.turns import Turns
from windrow.pipelines.validating import CURVE, Validating, score_of
from windrow.pipelines.watching import GETTING_READY, Evaluation, Glance, StepReport, Watcher
from windrow.protocol import DataProto
from windrow.rollout.summary import ledger_json
from windrow.store.checkpoints import Checkpoint
from windrow.store.run import RunFolder
from windrow.train.estimate import estimate
from windrow.train.weights import deliver
from windrow.trajectory import Trajectory
from windrow.types import Mode, Value, described, from_plain, to_plain

log = logging.getLogger(__name__)

T = TypeVar("T")

SMOOTH = 0.2
"""How much the last step counts in what is said about the time left."""
SCHEDULER, PROBLEMS = "scheduler", "problems"
"""Parts of a checkpoint, beside those of whoever learns."""
AT_REST = ("updating weights", "validating", "collecting", "estimating")
"""What goes on while the trainer is as its last update left it."""


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
    """Held-out problems that were trained on as well; None if that is not known."""


class Learnt(NamedTuple):
    """What an update was made of, and what it said."""

    step: int
    """Updates before it."""
    batch: DataProto
    metrics: dict[str, float]


class Training:
    """A run while it goes on."""

    def __init__(
        self,
        file: Agentic | Rlvr,
        run: RunFolder,
        watcher: Watcher,
        checkpoint: Checkpoint | None = None,
        ground: Ground | None = None,
        ready: Callable[[], object] = lambda: None,
    ) -> None:
        """`ground` is closed with the run; None: what the file asks for is opened with it.

        `ready` is called when everything is loaded, before anything is changed in the folder.
        """
        self.file = file
        self.run = run
        self._watcher = watcher
        self._checkpoint = checkpoint
        self._first = 0 if checkpoint is None else checkpoint.step
        self._given_ground = ground
        self._ready = ready
        self._closing = AsyncExitStack()  # all and only what was opened
        self._ground: Ground
        self._learning: Learning
        self._players: Playing | None = None  # from the moment on at which they are there
        self._trackers: Trackers
        self._problems = Problems()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="windrow-train")
        self._validating: Validating
        self._doing = GETTING_READY
        self._at = self._first  # updates made
        self._untold: Learnt | None = None  # the last one of them, until it is reported
        self._untrained: int | None = None  # the batch that was handed out last, until it counts as trained
        self._noted: dict[str, float] = {}  # numbers that belong to the step that is reported next
        self._asked_for = self._first  # the step of the last batch
        self._lent_at: float | None = None  # since when engines have lent their devices
        self._is_shrunk = False  # and not merely paused
        lent = lent_engines(file.layout)
        self._timeline = Timeline(lent)
        self._turns = Turns(file.layout.shared, lent, self._look)
        self._pace = 0.0  # seconds per step
        self._began = self._step_began = self._learn_began = time.monotonic()
        self._busy: Mapping[str, Busy] = {}  # how long engines had computed at the last look

    # life

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as opened:
            await self._get_ready(opened)
            self._closing = opened.pop_all()
        return self

    async def _get_ready(self, opened: AsyncExitStack) -> None:
        file, checkpoint = self.file, self._checkpoint
        self._ground = opened.enter_context(self._given_ground or open_ground(file))
        self._trackers = open_trackers(file.trackers, self.run.path, self._first or None, described(file))
        opened.callback(self._trackers.close)
        opened.callback(self._thread.shutdown, wait=True)
        made = self._learning = await learning(
            file, self._watcher, checkpoint, self._off_loop, self._problems.train_on, self._ground.trainers
        )
        opened.callback(made.close)
        # a run that goes on gives them its weights first
        players = self._players = playing(file, made.model, made.codec, 0, self._ground.devices)
        opened.push_async_callback(players.close)
        players.rollouts.listeners += [self._problems.train_on, self._record]
        players.held_out.listeners.append(self._problems.validate_on)
        self._validating = Validating(file, players, self.run.checkpoints, self._watcher, self._measured)
        opened.push_async_callback(self._validating.end)
        if checkpoint is not None:
            self._restore(checkpoint)
        await self._turns.hand_to("generation")
        await players.rollouts.initialize()
        self._busy = await players.busy()
        self._ready()
        self._began = time.monotonic() - (checkpoint.meta["seconds"] if checkpoint is not None else 0.0)

    def _restore(self, checkpoint: Checkpoint) -> None:
        """What is neither learnt nor played on goes on as well."""
        self._playing.rollouts.restore(checkpoint.path(SCHEDULER).read_bytes())
        self._problems.load(checkpoint.path(PROBLEMS).read_bytes() if PROBLEMS in checkpoint.parts else None)
        self._validating.curve = from_plain(checkpoint.meta[CURVE], list[Evaluation])

    async def __aexit__(self, kind: type[BaseException] | None, _: object, __: TracebackType | None) -> None:
        async with self._closing:
            if kind is not None and issubclass(kind, asyncio.CancelledError):
                await self._save_what_there_is()
            elif kind is not None and self._doing in AT_REST:
                await self._save_if_possible()

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
            await self._save(step, goes_on=step < self.file.steps)

    async def validate(self, step: int) -> None:
        """Success on held-out tasks, if it is time to look."""
        if self._validating.is_due(step):
            self._doing = "validating"
            await self._validating.look(step)

    def is_over(self, step: int) -> bool:
        """All steps are done, or held-out success is as high as it was to be."""
        return step >= self.file.steps or self._validating.is_enough

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
        """How good each token was, with whatever that takes: a reference, values, and what the engine said of it."""
        self._doing = "estimating"
        self._turns.check("training")
        self._learn_began = time.monotonic()
        return await self._off_loop(self._estimate, batch)

    async def train(self, step: int, batch: DataProto) -> None:
        """New weights."""
        self._doing = "training"
        self._turns.check("training")
        await self._off_loop(self._learn, step, batch)
        await self._turns.check_quiet()
        self._timeline.note("training", self._learn_began, time.monotonic())
        await self._note_activity()
        await self._tell()

    async def shrink(self) -> None:
        """Generation gives up the devices that training shares with it; if it has no others, it pauses."""
        layout = self.file.layout
        if layout.kind == "overlapping":
            self._is_shrunk = await self._lend(layout.shared)
        elif layout.kind == "colocated":
            await self._playing.rollouts.suspend()
        await self._turns.hand_to("training")
        self._lent_at = _now()

    async def expand(self) -> None:
        """Generation takes them again; after a pause the next batch wakes it."""
        if self._lent_at is not None:
            self._timeline.note("lent", self._lent_at, _now())
            self._lent_at = None
        await self._turns.hand_to("generation")
        if self._is_shrunk:
            self._is_shrunk = False
            self._note(await self._playing.rollouts.expand_sampler([*self.file.layout.shared]))

    async def outcome(self) -> Outcome:
        """What it came to; whatever was saved last is the whole of it."""
        self._doing = "validating"
        await self._validating.finish()
        greedy = self.file.validate.greedy
        last = self._validating.curve[-1]
        if last.step != self._at or (greedy and last.greedy is None):
            await self._validating.evaluate(self._at, greedy=greedy)
        if not self._is_saved(self._at):
            await self._save(self._at)
        seconds = time.monotonic() - self._began
        await self._note_activity()
        await self._playing.close()
        curve = tuple(self._validating.curve)
        return Outcome(
            before=curve[0],
            after=curve[-1],
            curve=curve,
            steps=self._at,
            seconds=seconds,
            ledger=ledger_json(self._playing.rollouts.ledger()),
            overlap=self._problems.told_overlap(),
            timeline=tuple(self._timeline.spans()),
        )

    def glance(self) -> Glance:
        """What goes on right now."""
        mode: Mode = "val" if self._doing == "validating" else "train"
        scheduling = None if self._players is None else self._players.rollouts.scheduling()
        lane = None if scheduling is None else scheduling.lanes[mode]
        each = self.file.collecting.env_manager(mode).group_size
        return Glance(
            doing=self._doing,
            step=self._at,
            steps=self.file.steps,
            in_flight=0 if lane is None else lane.attempts_playing,
            ready=0 if lane is None else lane.groups_ready * each,
            wanted=self.file.validate.tasks * each if mode == "val" else self.file.rollout.rollout_batch_size,
        )

    # inside

    @property
    def _playing(self) -> Playing:
        assert self._players is not None, "enter the run first"
        return self._players

    async def _lend(self, devices: Sequence[int]) -> bool:
        """Engines on these devices give them up; if all others are lost, generation pauses instead, and it is false."""
        rollouts = self._playing.rollouts
        try:
            self._note(await rollouts.shrink_sampler([*devices]))
        except Refused as error:
            if not (await rollouts.survey()).lost_engines:
                raise
            log.warning("generation pauses while training has the devices: %s", error)
            await rollouts.suspend()
            return False
        return True

    async def _look(self) -> Mapping[str, Activity]:
        """What the engines have done so far."""
        return await self._off_loop(self._playing.activity)

    async def _note_activity(self) -> None:
        """For the timeline, which only those have who share devices."""
        if not self.file.layout.shared:
            return
        asked = _now()
        self._timeline.look(await self._look(), asked, _now())

    def _estimate(self, batch: DataProto) -> DataProto:
        train = self.file.train
        return estimate(self._learning.look_back(batch), train.estimator, train.loss)

    def _learn(self, step: int, batch: DataProto) -> None:
        """An update, which counts as soon as it is made, whether or not anybody still waits for it."""
        metrics = self._learning.train(batch)
        self._untold = Learnt(step, batch, {**metrics, "run/learn_s": time.monotonic() - self._learn_began})
        self._at = step + 1

    async def _tell(self) -> None:
        """Report the last update, unless that was done."""
        if self._untold is not None:
            busy = await self._playing.busy()
            learnt, self._untold = self._untold, None
            self._report(learnt, busy)

    async def _save(self, step: int, *, goes_on: bool = False) -> None:
        """Everything that is needed to go on after so many updates; with `goes_on` generation does, meanwhile."""
        self._doing = "saving"
        began = time.monotonic()
        snapshot, problems = self._playing.rollouts.snapshot(), self._problems.saved()
        if goes_on:
            await self._playing.rollouts.resume()  # what it has so far is in the snapshot, and nothing is learnt yet
        parts = {
            **self._learning.parts(),
            SCHEDULER: lambda path: path.write_bytes(snapshot),
            PROBLEMS: lambda path: path.write_bytes(problems),
        }
        seen = [each for each in self._validating.curve if each.step <= step]
        meta = {
            CURVE: to_plain(seen),
            "seconds": time.monotonic() - self._began,
            "vocabulary": self._learning.model.config.vocab_size,
        }
        await self._off_loop(lambda: self.run.checkpoints.save(step, parts, score=score_of(seen, step), meta=meta))
        await self._validating.score_checkpoints()  # what was found aside meanwhile
        self._note({"run/save_s": time.monotonic() - began})

    async def _save_what_there_is(self) -> None:
        """The run was broken off: what was trained since the last checkpoint is kept as well."""
        await self._off_loop(lambda: None)  # a step that is being trained ends first
        await self._tell()
        if not self._is_saved(self._at):
            if self._untrained is not None and self._asked_for < self._at:
                await self._playing.rollouts.mark_trained(self._untrained)
            await self._save(self._at)

    async def _save_if_possible(self) -> None:
        """The run failed, its trainer did not."""
        try:
            await self._save_what_there_is()
        except (WindrowError, OSError) as error:
            log.warning("what was trained since the last checkpoint cannot be saved: %s", error)

    def _is_saved(self, step: int) -> bool:
        return step == self._first or step in self.run.checkpoints.steps()

    def _record(self, trajectories: Sequence[Trajectory]) -> None:
        """Write some of a step's trajectories down, under the number that its metrics have."""
        if self.file.save.trajectories:
            self.run.record(self._asked_for + 1, trajectories[: self.file.save.trajectories])

    def _report(self, learnt: Learnt, busy: Mapping[str, Busy]) -> None:
        """Write down, track and tell what a step was; `busy`: how long engines have computed."""
        step, batch, metrics = learnt
        seconds = time.monotonic() - self._step_began
        self._pace = seconds if not self._pace else (1 - SMOOTH) * self._pace + SMOOTH * seconds
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
            utilisation=busy_share(self._busy, busy),
            seconds=seconds,
            seconds_left=self._pace * (self.file.steps - step - 1),
            metrics=found,
        )
        self._busy = busy
        self._measured(step + 1, found)
        self._watcher.stepped(report)

    def _measured(self, step: int, values: Mapping[str, float]) -> None:
        """Write values of a step down, and track them."""
        self.run.metrics.append(step, values)
        self._trackers.log(step, values)

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
