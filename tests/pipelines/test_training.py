"""A whole run: it trains, keeps its books, writes everything down, and goes on from where it was."""

import asyncio
import shutil
import time
from itertools import count
from pathlib import Path

import pytest
import torch
from tests.pipelines.kit import LAKE, Notes, exact, go_on, losses, small, train
from transformers import AutoModelForCausalLM, AutoTokenizer

from windrow.engines.torch.spells import Busy
from windrow.errors import ConfigError, TrainError
from windrow.pipelines.agentic import train_agent
from windrow.pipelines.config import Saving, Validation
from windrow.pipelines.evaluation import check_one_version
from windrow.pipelines.learning import Learning
from windrow.pipelines.placing import Roles, Workers
from windrow.pipelines.playing import Playing
from windrow.pipelines.training import Outcome, Training
from windrow.protocol import DataProto
from windrow.rollout.scheduler import RolloutScheduler
from windrow.store.run import RunFolder
from windrow.train.config import (
    EstimatorConfig,
    LoraConfig,
    LossConfig,
    ModelConfig,
    OptimizerConfig,
    TrainConfig,
)
from windrow.types import but


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, RunFolder, Notes]:
    notes = Notes()
    outcome, folder = train(exact(small(steps=4)), tmp_path_factory.mktemp("runs"), notes)
    return outcome, folder, notes


def steps_told(folder: RunFolder) -> list[int]:
    """The steps of the lines about updates, in their order."""
    return [line.step for line in folder.metrics if "run/learn_s" in line.values]


def test_a_run_reports_before_and_after_and_every_step(finished: tuple[Outcome, RunFolder, Notes]):
    outcome, folder, notes = finished
    assert [each.step for each in outcome.curve] == [0, 2, 4]
    assert (outcome.before, outcome.after) == (outcome.curve[0], outcome.curve[-1])
    assert outcome.before.tasks == 16
    assert [each.greedy is not None for each in outcome.curve] == [True, False, True]
    assert [report.step for report in notes.steps] == [1, 2, 3, 4]
    assert all(0 < report.utilisation <= 1 for report in notes.steps)
    assert steps_told(folder) == [1, 2, 3, 4]


def test_a_validation_stands_in_the_metrics_under_its_own_step_when_it_ends(
    finished: tuple[Outcome, RunFolder, Notes],
):
    outcome, folder, _ = finished
    lines = [(line.step, line.values) for line in folder.metrics]
    assert [step for step, values in lines if "validation/success" in values] == [0, 2, 4]
    assert [step for step, _ in lines] == [0, 1, 2, 2, 3, 4, 4]
    assert lines[-1][1] == outcome.after.metrics
    assert lines[-1][1]["validation/greedy"] == outcome.after.greedy


def test_checkpoints_have_the_score_of_their_validation(finished: tuple[Outcome, RunFolder, Notes]):
    outcome, folder, _ = finished
    found = {checkpoint.step: checkpoint.score for checkpoint in folder.checkpoints.known()}
    success = {each.step: each.success for each in outcome.curve}
    assert found == {step: success.get(step) for step in found}
    assert found[4] is not None


def test_the_books_balance_at_the_end(finished: tuple[Outcome, RunFolder, Notes]):
    accounts = finished[0].ledger["train"]
    assert isinstance(accounts, dict)
    attempts = accounts["attempts"]
    assert attempts["alive"] == 0
    assert attempts["trained"] == 4 * 16
    assert attempts["admitted"] == attempts["trained"] + attempts["delivered"] + sum(attempts["dropped"].values())


def test_synchronous_training_is_on_its_own_samples_alone(finished: tuple[Outcome, RunFolder, Notes]):
    lines = [line.values for line in finished[1].metrics if "batch/lag_versions/max" in line.values]
    assert [values["batch/lag_versions/max"] for values in lines] == [0, 0, 0, 0]
    learnt = [values for values in lines if "train/mismatch_mean" in values]
    assert len(learnt) >= 2, "nothing was learnt, so nothing was compared"
    assert all(values["train/mismatch_mean"] < 1e-5 for values in learnt)
    assert all(values["train/stale_share"] == 0 for values in learnt)


def test_the_newest_checkpoint_is_a_model_that_anybody_can_load(finished: tuple[Outcome, RunFolder, Notes]):
    checkpoint = finished[1].checkpoints.load()
    assert checkpoint.step == 4
    model = AutoModelForCausalLM.from_pretrained(checkpoint.path("model"))
    tokenizer = AutoTokenizer.from_pretrained(checkpoint.path("model"))
    assert len(tokenizer) == model.config.vocab_size
    trained = torch.load(checkpoint.path("trainer.pt"), weights_only=True)["actor"]["weights"]
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, trained[f"model.{name}"]), name


def test_a_run_that_goes_on_from_a_checkpoint_loses_what_an_undisturbed_one_loses(
    finished: tuple[Outcome, RunFolder, Notes], tmp_path: Path
):
    _, folder = train(exact(small(steps=2)), tmp_path)
    outcome = go_on(exact(small(steps=4)), folder.path)
    assert losses(folder) == losses(finished[1])
    assert len(losses(folder)) >= 2, "nothing was learnt, so nothing was compared"
    assert [(each.success, each.greedy) for each in outcome.curve[-1:]] == [
        (each.success, each.greedy) for each in finished[0].curve[-1:]
    ]


def test_without_a_learning_rate_everything_stays_as_it_was(tmp_path: Path):
    file = small(train=TrainConfig(optimizer=OptimizerConfig(lr=0.0)), steps=2)
    outcome, folder = train(file, tmp_path)
    states = [
        torch.load(folder.checkpoints.load(step).path("trainer.pt"), weights_only=True)["actor"]["weights"]
        for step in (1, 2)
    ]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert outcome.before.greedy == outcome.after.greedy
    ratios = [line.values["train/ratio"] for line in folder.metrics if "train/loss" in line.values]
    assert ratios, "nothing was learnt from, so nothing was compared"
    assert ratios == pytest.approx([1.0] * len(ratios))


def test_with_a_bound_generation_goes_on_and_stays_within_it_on_average(tmp_path: Path):
    file = small(steps=5)
    file = but(file, rollout=but(file.rollout, staleness=1.0))
    _, folder = train(file, tmp_path)
    lags = [line.values["batch/lag_versions/mean"] for line in folder.metrics if "run/learn_s" in line.values]
    assert len(lags) == 5
    assert max(lags) > 0
    assert sum(lags) / len(lags) <= 1.0


def test_a_validation_aside_is_of_one_version_while_training_goes_on(tmp_path: Path):
    file = small(devices=2, steps=4, validate=Validation(tasks=16, every=1, at_once=16, how="aside"))
    file = but(file, rollout=but(file.rollout, staleness=1.0))
    outcome, folder = train(file, tmp_path)  # one with two versions would be an error
    assert [each.step for each in outcome.curve] == [0, 1, 2, 3, 4]
    assert all(each.tasks == 16 for each in outcome.curve)
    assert steps_told(folder) == [1, 2, 3, 4]
    assert [line.step for line in folder.metrics if "validation/success" in line.values] == [0, 1, 2, 3, 4]


def on_devices(infer: str, train: str) -> Roles:
    return Roles(actor_infer=Workers(device_mapping=infer), actor_train=Workers(device_mapping=train))


@pytest.mark.parametrize("ended", [True, False])
def test_nothing_is_resumed_for_a_validation_aside_that_has_ended(
    ended: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    resumed: list[str] = []
    resume = RolloutScheduler.resume

    async def noted(self: RolloutScheduler) -> None:
        resumed.append("resumed")
        await resume(self)

    async def body(run: Training) -> None:
        async with run:
            await run.validate(1)
            [aside] = [task for task in asyncio.all_tasks() if task.get_name() == "validation"]
            if ended:
                await aside
            monkeypatch.setattr(RolloutScheduler, "resume", noted)
            await run.suspend()
            await run.validate(2)
            assert aside.done()

    how = Validation(tasks=4, every=1, at_once=4, how="aside", greedy=False)
    with RunFolder.create(tmp_path, "small", "pipeline: agentic\n") as folder:
        asyncio.run(body(Training(small(devices=2, warm_start=None, validate=how), folder, Notes())))
    assert resumed == ([] if ended else ["resumed"])


def test_devices_that_training_shares_are_lent_to_it(tmp_path: Path):
    file = small(devices=2, roles=on_devices("0-1", "0"), steps=2)
    file = but(file, rollout=but(file.rollout, staleness=1.0))
    _, folder = train(file, tmp_path)
    last = [line.values for line in folder.metrics if "run/learn_s" in line.values][-1]
    assert last["shrink_duration_ms"] > 0
    assert last["expand_duration_ms"] > 0
    assert last["run/learn_s"] > 0


def test_generation_pauses_where_training_has_all_its_devices(tmp_path: Path):
    file = small(roles=on_devices("0", "0"), steps=4)
    file = but(file, rollout=but(file.rollout, staleness=1.0))
    _, folder = train(file, tmp_path)
    assert steps_told(folder) == [1, 2, 3, 4]
    assert all("shrink_duration_ms" not in line.values for line in folder.metrics)


def test_training_ends_early_when_held_out_success_is_reached(tmp_path: Path):
    file = small(steps=50, validate=Validation(tasks=16, every=1, at_once=16, stop_at=0.0))
    outcome, _ = train(file, tmp_path)
    assert outcome.steps == 1


def test_training_ends_when_no_task_is_left(tmp_path: Path):
    file = small(steps=50, validate=Validation(tasks=16, every=0, at_once=16))
    file = but(file, rollout=but(file.rollout, train_env_manager=but(LAKE, max_tasks=8)))
    outcome, _ = train(file, tmp_path)
    assert outcome.steps == 2
    assert outcome.after.step == 2


@pytest.mark.parametrize(
    ("kind", "needs"),
    [("gae", {}), ("gigpo", {}), ("reinforce_pp", {}), ("rloo", {}), ("grpo", {"kl": 0.01, "entropy": 0.01})],
)
def test_every_estimator_trains(kind: str, needs: dict[str, float], tmp_path: Path):
    settings = TrainConfig(
        estimator=EstimatorConfig(kind=kind),  # type: ignore[arg-type]  # one of those above
        loss=LossConfig(**needs),  # type: ignore[arg-type]  # numbers
        optimizer=OptimizerConfig(lr=1e-3),
    )
    _, folder = train(small(train=settings, steps=2, validate=Validation(tasks=4, every=0)), tmp_path)
    assert len(losses(folder)) >= 1
    if kind != "grpo":
        go_on(small(train=settings, steps=3, validate=Validation(tasks=4, every=0)), folder.path)


def test_a_validation_with_two_versions_is_an_error():
    batch = DataProto.from_dict({"policy_versions": torch.tensor([[-1, 3, 3], [-1, 4, -1]])})
    with pytest.raises(TrainError, match="versions \\[3, 4\\]"):
        check_one_version(batch)


def test_what_cannot_work_is_refused_before_anything_begins():
    with pytest.raises(ConfigError, match="none is left for training"):
        small(devices=1, validate=Validation(how="aside")).__post_init__()


def test_a_run_that_is_cancelled_keeps_what_it_has_trained(tmp_path: Path):
    file = small(steps=50, save=Saving(every=0), validate=Validation(tasks=4, every=0))
    notes = Notes()

    async def body(folder: RunFolder) -> None:
        task = asyncio.create_task(train_agent(Training(file, folder, notes)))
        while len(notes.steps) < 2:  # noqa: ASYNC110 -- a watcher is told, nobody waits for it
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with RunFolder.create(tmp_path, "small", "") as folder:
        asyncio.run(body(folder))
    saved = folder.checkpoints.load()
    assert saved.step >= 2
    assert go_on(but(file, steps=saved.step + 1), folder.path).steps == saved.step + 1


def test_a_step_that_is_being_trained_when_a_run_is_cancelled_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The same numbers as without the cancellation: the batch is not trained on again."""
    file = exact(small(steps=3, save=Saving(every=0), validate=Validation(tasks=4, every=0, greedy=False)))
    _, whole = train(file, tmp_path / "whole")
    learn, made = Learning.train, count(1)

    async def body(folder: RunFolder) -> None:
        task = asyncio.create_task(train_agent(Training(file, folder, Notes())))
        loop = asyncio.get_running_loop()

        def in_the_middle(self: Learning, batch: DataProto) -> dict[str, float]:
            if next(made) == 2:
                loop.call_soon_threadsafe(task.cancel)
                time.sleep(0.2)  # until it is
            return learn(self, batch)

        monkeypatch.setattr(Learning, "train", in_the_middle)
        with pytest.raises(asyncio.CancelledError):
            await task

    with RunFolder.create(tmp_path / "cut", "small", "") as folder:
        asyncio.run(body(folder))
    assert folder.checkpoints.steps() == [2]
    go_on(file, folder.path)
    cut = RunFolder.read(folder.path)
    assert steps_told(cut) == [1, 2, 3]
    assert losses(cut) == losses(whole)


def test_engines_are_busy_for_no_longer_than_the_time_that_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What they say may come late, now and then; that is no time in which they worked more."""
    look, looks = Playing.busy, count()

    async def late(self: Playing) -> dict[str, Busy]:
        found = await look(self)
        await asyncio.sleep(next(looks) % 2)
        return found

    monkeypatch.setattr(Playing, "busy", late)
    file = small(steps=4, warm_start=None, validate=Validation(tasks=2, every=0, greedy=False))
    notes = Notes()
    train(but(file, rollout=but(file.rollout, staleness=4.0)), tmp_path, notes)
    assert all(0 < report.utilisation <= 1 for report in notes.steps)


def test_adapters_are_saved_alone_and_merged(tmp_path: Path):
    """Both are the same policy: the adapters on the model that they were trained on, and the merged model."""
    peft = pytest.importorskip("peft")
    base = tmp_path / "base"
    _, before = train(small(steps=1), tmp_path / "first")
    shutil.copytree(before.checkpoints.load().path("model"), base)
    file = small(steps=2, warm_start=None, model=ModelConfig(path=str(base), lora=LoraConfig(rank=2)))
    _, folder = train(file, tmp_path / "second")
    checkpoint = folder.checkpoints.load()
    merged = AutoModelForCausalLM.from_pretrained(checkpoint.path("model"))
    adapted = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), checkpoint.path("adapter"))
    plain = AutoModelForCausalLM.from_pretrained(base)
    ids = torch.arange(1, 20)[None]
    torch.testing.assert_close(adapted(ids).logits, merged(ids).logits, atol=1e-5, rtol=0)
    assert not torch.equal(plain(ids).logits, merged(ids).logits), "nothing was learnt, so nothing was compared"
