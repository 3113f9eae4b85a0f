"""What a run keeps: its best checkpoint with its score, what it trained on, and what it had when it failed."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.pipelines.kit import LAKE, LESSON, Notes, go_on, small, train
from tests.rollout.given_trajectories import trajectory

from windrow.envs.frozen_lake import FrozenLakeEnv
from windrow.errors import ConfigError, EnvError, TrainError
from windrow.observe.trackers import Trackers
from windrow.pipelines import problems as problems_module
from windrow.pipelines import validating
from windrow.pipelines.agentic import train_agent
from windrow.pipelines.config import Cloning, Saving, Validation
from windrow.pipelines.evaluation import evaluate
from windrow.pipelines.learning import Learning
from windrow.pipelines.playing import Playing
from windrow.pipelines.sft import clone_behaviour
from windrow.pipelines.training import Training
from windrow.pipelines.watching import Evaluation
from windrow.rollout.scheduler import RolloutScheduler
from windrow.store.checkpoints import Checkpoints, Keep
from windrow.store.run import RunFolder
from windrow.trajectory import Task, Trajectory
from windrow.types import but, to_plain

RISES_AND_FALLS = {0: 0.1, 1: 0.2, 2: 0.9, 3: 0.5, 4: 0.4, 5: 0.3}
"""Success by step, for a run whose own would be left to chance."""


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Validations are played, and find what the table above says."""

    async def found(held_out: RolloutScheduler, step: int, *more: Any, **how: Any) -> Evaluation:
        return but(await evaluate(held_out, step, *more, **how), success=RISES_AND_FALLS[step])

    monkeypatch.setattr(validating, "evaluate", found)


@pytest.mark.parametrize("how", ["between", "aside"])
def test_the_best_of_the_curve_is_kept_with_its_score(how: Any, told: None, tmp_path: Path):
    file = small(devices=2, steps=5, validate=Validation(tasks=4, every=1, at_once=4, how=how))
    with RunFolder.create(tmp_path, "small", "", keep=Keep(last=1)) as folder:
        outcome = asyncio.run(train_agent(Training(file, folder, Notes())))
    assert {each.step: each.success for each in outcome.curve} == RISES_AND_FALLS
    best = folder.checkpoints.best()
    assert best is not None
    assert (best.step, best.score) == (2, 0.9)
    assert folder.checkpoints.steps() == [2, 5]
    assert [each["step"] for each in best.meta["curve"]] == [0, 1, 2]


def test_a_checkpoint_whose_validation_goes_on_stays_until_that_has_ended(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path, Keep(last=1, best=1))
    for step in (1, 2):
        checkpoints.awaited.add(1)
        checkpoints.save(step, {"model": lambda path: path.write_text("weights")}, score=None)
    assert checkpoints.steps() == [1, 2]
    found = [Evaluation(step=1, tasks=4, success=0.5, greedy=None, score=0.5)]
    validating.score_checkpoints(checkpoints, found)
    checkpoints.awaited.clear()
    checkpoints.save(3, {"model": lambda path: path.write_text("weights")}, score=0.25)
    assert [(each.step, each.score) for each in checkpoints.known()] == [(1, 0.5), (3, 0.25)]


def test_a_score_is_not_forgotten_by_a_run_that_went_on_from_a_checkpoint_that_did_not_know_it(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path)
    zero, one, two = (Evaluation(step=step, tasks=4, success=0.5, greedy=None, score=0.5) for step in range(3))
    for step, known in (1, [zero, one]), (2, [zero]):  # it was killed before the second one was told
        checkpoints.save(
            step, {"model": lambda path: path.write_text("weights")}, score=0.5, meta={"curve": to_plain(known)}
        )
    validating.score_checkpoints(checkpoints, [zero, two])
    assert [(each.step, each.score) for each in checkpoints.known()] == [(1, 0.5), (2, 0.5)]
    assert [len(each.meta["curve"]) for each in checkpoints.known()] == [2, 2]


@pytest.mark.parametrize(("greedy", "steps"), [(None, 1), (0.2, 3)])
def test_a_run_stops_by_what_was_measured_alone(greedy: float | None, steps: int):
    settings = Validation(every=1, stop_at=0.5, greedy=greedy is not None)
    file = small(steps=3, validate=settings)
    run = validating.Validating(file, None, None, Notes(), lambda *_: None)  # type: ignore[arg-type]  # nobody plays
    run.curve = [Evaluation(step=1, tasks=4, success=0.6, greedy=greedy, score=0.6)]
    assert run.is_enough == (steps == 1)


def test_a_goal_without_validations_on_the_way_is_refused():
    with pytest.raises(ConfigError, match="stop_at needs validations on the way, but every is 0"):
        Validation(every=0, stop_at=0.5)


def test_what_was_trained_on_before_a_run_went_on_is_compared_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = small(steps=1, validate=Validation(tasks=4, every=0, greedy=False))
    monkeypatch.setattr(problems_module, "_hash", lambda each: f"{each.task.seed % 997:8}".encode())
    first, folder = train(file, tmp_path)
    saved = problems_module.Problems()
    saved.load(folder.checkpoints.load().path("problems").read_bytes())
    assert len(saved._trained) >= 40, "demonstrations are among them"
    monkeypatch.setattr(problems_module, "_hash", lambda _: None)
    assert go_on(but(file, steps=2), folder.path).overlap == first.overlap
    assert first.overlap is not None


def attempt_at(problem: str, tag: str = "") -> Trajectory:
    return but(trajectory(1), info={"problem": problem}, task=Task(ordinal=0, tag=tag))


def test_a_problem_is_the_same_whatever_its_kind_is_called():
    found = problems_module.Problems()
    found.train_on([attempt_at("1 + 1", "sums")])
    found.validate_on([attempt_at("1 + 1", "arithmetic"), attempt_at("1 + 2", "sums")])
    assert found.overlap == 1


def test_problems_that_nobody_could_keep_are_not_called_new(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(problems_module, "MOST", 2)
    found = problems_module.Problems()
    found.validate_on([attempt_at("held out")])
    found.train_on([attempt_at("1"), attempt_at("2"), attempt_at("1")])
    known = [found.overlap]
    found.train_on([attempt_at("held out")])
    again = problems_module.Problems()
    again.load(found.saved())
    assert [*known, found.overlap, again.overlap] == [0, None, None]


def test_demonstrations_that_are_cloned_are_compared_with_held_out_tasks_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(problems_module, "_hash", lambda _: b"the same")
    file = small()
    lesson = Cloning(
        model=file.model,
        engine=file.engine,
        demonstrations=LESSON,
        rollout=file.rollout,
        validate=Validation(tasks=4, greedy=False),
    )
    with RunFolder.create(tmp_path, "small", "") as folder:
        assert asyncio.run(clone_behaviour(lesson, folder, Notes())).overlap == 1


def test_of_a_checkpoint_that_does_not_say_nothing_is_claimed():
    found = problems_module.Problems()
    found.load(None)
    found._trained, found._held_out = {b"a"}, {b"b"}
    assert found.overlap is None
    found._held_out.add(b"a")
    assert found.overlap == 1


class Leaky(FrozenLakeEnv):
    """A lake that cannot be entered on one held-out task in four."""

    async def start(self, task: Task) -> str:
        if task.split == "held_out" and task.ordinal % 4 == 0:
            raise ValueError("the ice is broken")
        return await super().start(task)


def test_a_held_out_task_that_fails_counts_as_not_solved(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    file = small(steps=1, warm_start=None, validate=Validation(tasks=16, every=0, at_once=16, greedy=False))
    lake = but(LAKE, env=Leaky, success_at=-1.0)  # whatever is played is a success
    outcome, folder = train(but(file, rollout=but(file.rollout, train_env_manager=lake)), tmp_path)
    assert [(each.tasks, each.failed, each.success) for each in outcome.curve] == [(16, 4, 0.75)] * 2
    assert "4 of 16 held-out tasks failed after 1 updates and count as not solved" in caplog.text
    assert [*folder.metrics][-1].values["validation/failed"] == 4


def fails_from(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    get_batch = RolloutScheduler.get_batch

    async def failing(self: RolloutScheduler, data: Any, size: int) -> Any:
        if self.mode == "train" and data.meta_info["global_step"] == step:
            raise EnvError("the lake is dry")
        return await get_batch(self, data, size)

    monkeypatch.setattr(RolloutScheduler, "get_batch", failing)


def test_a_run_that_fails_while_it_collects_keeps_what_it_has_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = small(steps=4, save=Saving(every=0), validate=Validation(tasks=4, every=0, greedy=False))
    with monkeypatch.context() as patched:
        fails_from(2, patched)
        with (
            RunFolder.create(tmp_path, "small", "") as folder,
            pytest.raises(EnvError, match="the lake is dry"),
        ):
            asyncio.run(train_agent(Training(file, folder, Notes())))
    assert folder.checkpoints.steps() == [2]
    assert go_on(file, folder.path).steps == 4


def test_of_a_run_that_fails_while_it_trains_nothing_doubtful_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def failing(self: Learning, batch: object) -> dict[str, float]:
        raise TrainError("the gradient is gone")

    monkeypatch.setattr(Learning, "train", failing)
    with RunFolder.create(tmp_path, "small", "") as folder, pytest.raises(TrainError, match="the gradient is gone"):
        asyncio.run(train_agent(Training(small(), folder, Notes())))
    assert folder.checkpoints.steps() == []


def test_a_run_that_cannot_begin_closes_what_it_has_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    closed: list[str] = []

    async def unable(self: RolloutScheduler) -> None:
        raise ConfigError("no engine starts")

    for kind in (Trackers, Learning):
        monkeypatch.setattr(kind, "close", lambda self: closed.append(type(self).__name__))
    close = Playing.close

    async def noted(self: Playing) -> None:
        closed.append("Playing")
        await close(self)

    monkeypatch.setattr(Playing, "close", noted)
    monkeypatch.setattr(RolloutScheduler, "initialize", unable)
    with RunFolder.create(tmp_path, "small", "") as folder, pytest.raises(ConfigError, match="no engine starts"):
        asyncio.run(train_agent(Training(small(warm_start=None), folder, Notes())))
    assert closed == ["Playing", "Learning", "Trackers"]


def test_a_validation_aside_has_gone_before_those_who_play_it_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    begun: list[asyncio.Task[Any]] = []
    gone: list[bool] = []
    close = Playing.close

    async def noted(self: Playing) -> None:
        gone.extend(task.done() for task in begun)
        await close(self)

    monkeypatch.setattr(Playing, "close", noted)

    async def begin(run: Training) -> None:
        async with run:
            await run.validate(1)
            begun.extend(task for task in asyncio.all_tasks() if task.get_name() == "validation")
            raise TrainError("enough")

    async def body(run: Training) -> None:
        with pytest.raises(TrainError, match="enough"):
            await begin(run)
        assert gone == [True]

    how = Validation(tasks=4, every=1, at_once=4, how="aside", greedy=False)
    with RunFolder.create(tmp_path, "small", "") as folder:
        asyncio.run(body(Training(small(devices=2, warm_start=None, validate=how), folder, Notes())))


def test_generation_goes_on_while_a_checkpoint_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    held: list[tuple[str, ...]] = []
    run: Training
    save = Checkpoints.save

    def noted(self: Checkpoints, *given: Any, **more: Any) -> Any:
        scheduling = run._playing.rollouts.scheduling()
        assert scheduling is not None
        held.extend(engine.holders for engine in scheduling.engines)
        return save(self, *given, **more)

    monkeypatch.setattr(Checkpoints, "save", noted)
    with RunFolder.create(tmp_path, "small", "") as folder:
        run = Training(small(validate=Validation(tasks=4, every=0, greedy=False)), folder, Notes())
        asyncio.run(train_agent(run))
    assert held[:2] == [(), ()]


def test_a_look_at_a_validation_counts_its_own_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = small(warm_start=None, validate=Validation(tasks=8, every=0, at_once=8, greedy=False))

    async def body(run: Training) -> None:
        async with run:
            assert (run.glance().doing, run.glance().step, run.glance().steps) == ("getting ready", 0, 3)
            await run.validate(0)
            seen = run.glance()
            assert (seen.doing, seen.wanted) == ("validating", 8)

    with RunFolder.create(tmp_path, "small", "") as folder:
        asyncio.run(body(Training(file, folder, Notes())))


def test_trajectories_of_a_step_are_written_once_under_its_number(tmp_path: Path):
    file = small(steps=1, save=Saving(every=1, trajectories=3), validate=Validation(tasks=4, every=0, greedy=False))
    _, folder = train(file, tmp_path)
    go_on(but(file, steps=2), folder.path)
    assert folder.recorded_steps() == [1, 2]
    assert [len([*folder.recording(step)]) for step in (1, 2)] == [3, 3]
