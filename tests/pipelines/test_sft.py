"""Supervised fine-tuning as a whole run: it keeps its books, is tracked, and goes on from where it was."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.pipelines.kit import LAKE, LESSON, MODEL, Notes

from windrow.engines.torch.settings import TorchSettings
from windrow.errors import ConfigError
from windrow.pipelines import sft
from windrow.pipelines.config import Cloning, Saving, Validation
from windrow.pipelines.sft import clone_behaviour
from windrow.pipelines.training import Outcome
from windrow.rollout.config import RolloutConfig
from windrow.store.run import RunFolder
from windrow.train.config import LoraConfig, MicroConfig
from windrow.types import but

STEPS = 4


def lesson(steps: int = STEPS, **changes: Any) -> Cloning:
    file = Cloning(
        name="lesson",
        model=MODEL,
        engine=TorchSettings(capacity=16, deterministic=True),
        demonstrations=but(LESSON, episodes=8, supervised=but(LESSON.supervised, steps=steps, batch_size=4)),
        rollout=RolloutConfig(rollout_batch_size=16, train_env_manager=LAKE),
        validate=Validation(tasks=4, every=0, at_once=4, greedy=False),
        save=Saving(every=2, trajectories=0),
    )
    return but(file, **changes)


def learn(file: Cloning, root: Path, notes: Notes | None = None) -> tuple[Outcome, RunFolder]:
    with RunFolder.create(root, file.name, "pipeline: sft\n") as folder:
        outcome = asyncio.run(clone_behaviour(file, folder, notes or Notes()))
        return outcome, RunFolder.read(folder.path)


def go_on(file: Cloning, path: Path) -> Outcome:
    with RunFolder.open(path) as folder:
        checkpoint = folder.checkpoints.load()
        folder.rewind(checkpoint.step)
        return asyncio.run(clone_behaviour(file, folder, Notes(), checkpoint=checkpoint))


def losses(folder: RunFolder) -> dict[int, float]:
    return {line.step: line.values["supervised/loss"] for line in folder.metrics if "supervised/loss" in line.values}


def weights(folder: RunFolder) -> dict[str, torch.Tensor]:
    state = torch.load(folder.checkpoints.load().path("trainer.pt"), weights_only=True)
    found: dict[str, torch.Tensor] = state["learner"]["weights"]
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, RunFolder]:
    return learn(lesson(), tmp_path_factory.mktemp("whole"))


def test_every_step_is_written_down_and_what_is_due_is_saved(finished: tuple[Outcome, RunFolder]):
    outcome, folder = finished
    assert [*losses(folder)] == [1, 2, 3, 4]
    assert [each.step for each in outcome.curve] == [0, 4]
    assert [line.step for line in folder.metrics if "validation/success" in line.values] == [0, 4]
    assert folder.checkpoints.steps() == [2, 4]
    assert outcome.steps == STEPS


def test_a_run_that_goes_on_comes_to_the_same_numbers(finished: tuple[Outcome, RunFolder], tmp_path: Path):
    _, folder = learn(lesson(2), tmp_path)
    outcome = go_on(lesson(), folder.path)
    assert losses(folder) == losses(finished[1])
    assert [each.step for each in outcome.curve] == [0, 2, 4]
    expected = weights(finished[1])
    assert all(torch.equal(each, expected[name]) for name, each in weights(folder).items())


def test_what_was_learnt_until_it_was_broken_off_is_kept(finished: tuple[Outcome, RunFolder], tmp_path: Path):
    class Impatient(Notes):
        def __init__(self) -> None:
            super().__init__()
            self.give_up: Callable[[], object] = lambda: None

        def stage(self, name: str, done: float, total: float, note: str = "") -> None:
            if name == "cloning" and done == 3:
                self.give_up()

    file, notes = lesson(save=Saving(every=0, trajectories=0)), Impatient()

    async def body(folder: RunFolder) -> None:
        learning = asyncio.current_task()
        assert learning is not None
        notes.give_up = partial(asyncio.get_running_loop().call_soon_threadsafe, learning.cancel)
        await clone_behaviour(file, folder, notes)

    with RunFolder.create(tmp_path, "broken", "pipeline: sft\n") as folder, pytest.raises(asyncio.CancelledError):
        asyncio.run(body(folder))
    broken = RunFolder.read(folder.path)
    assert broken.checkpoints.steps()[-1] >= 3
    go_on(file, folder.path)
    assert losses(broken) == losses(finished[1])


def test_validation_on_the_way_ends_it_when_it_is_good_enough(tmp_path: Path):
    how = Validation(tasks=4, every=1, at_once=4, stop_at=0.0)
    outcome, folder = learn(lesson(validate=how), tmp_path)
    assert [each.step for each in outcome.curve] == [0, 1]
    assert outcome.curve[-1].greedy is not None
    assert folder.checkpoints.steps() == [1]


def test_trackers_are_told_the_steps_and_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    logged: list[int] = []
    settings: list[Any] = []

    class Told:
        def log(self, step: int, metrics: object) -> None:
            logged.append(step)

        def close(self) -> None: ...

    def opened(configs: object, path: Path, resumed: int | None, given: object) -> Told:
        settings.append(given)
        return Told()

    monkeypatch.setattr(sft, "open_trackers", opened)
    learn(lesson(2), tmp_path)
    assert logged == [0, 1, 2, 2]
    assert settings[0]["demonstrations"]["supervised"]["steps"] == 2


def test_the_arithmetic_of_the_model_is_that_of_the_lesson(finished: tuple[Outcome, RunFolder], tmp_path: Path):
    _, folder = learn(lesson(1, model=but(MODEL, dtype="bfloat16")), tmp_path)
    assert losses(folder)[1] != losses(finished[1])[1]
    assert losses(folder)[1] == pytest.approx(losses(finished[1])[1], rel=0.05)


def test_packing_is_tried_before_anything_is_learnt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def mixes(network: object) -> None:
        raise ConfigError("it does not keep packed rows apart")

    monkeypatch.setattr("windrow.train.roles.base.check_packing", mixes)
    file = lesson()
    packed = but(file.demonstrations.supervised, micro=MicroConfig(packing=True))
    with pytest.raises(ConfigError, match="packed rows apart"):
        learn(but(file, demonstrations=but(file.demonstrations, supervised=packed)), tmp_path)


def test_adapters_are_saved_beside_the_merged_model(tmp_path: Path):
    peft = pytest.importorskip("peft")
    _, folder = learn(lesson(1, model=but(MODEL, lora=LoraConfig(rank=2))), tmp_path)
    checkpoint = folder.checkpoints.load()
    saved = peft.utils.load_peft_weights(str(checkpoint.path("adapter")))
    trained = {name: each for name, each in weights(folder).items() if "lora_" in name}
    assert len(saved) == len(trained) > 0
    for name, each in saved.items():
        kept = trained[f"model.{name}".replace(".weight", ".default.weight")]
        assert torch.equal(each, kept), name
    assert peft.PeftConfig.from_pretrained(str(checkpoint.path("adapter"))).r == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"validate": Validation(how="aside")}, r"validate.how aside needs engines that go on meanwhile"),
        ({"validate": Validation(engines=2)}, r"validate.engines 2 is for validate.how aside"),
        ({"save": Saving(trajectories=8)}, r"save.trajectories 8 cannot be kept, sft plays none"),
    ],
)
def test_settings_that_do_not_apply_are_refused_by_name(changes: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        Cloning(**changes)
