"""What cannot work is found when a file is read, or before its run has a folder."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import asdict
from tests.pipelines.kit import LAKE, LESSON, MODEL, small

from windrow.errors import ConfigError
from windrow.observe.trackers import TrackerConfig
from windrow.observe.trackers.kinds import PACKAGES
from windrow.pipelines.config import Agentic, WarmStart
from windrow.pipelines.readiness import check_ready
from windrow.pipelines.warm_start import lessons
from windrow.requests import Sampling
from windrow.rollout.config import EnvManagerConfig, RolloutConfig
from windrow.rollout.demonstrations import demonstrate
from windrow.sources.config import SeedTasks
from windrow.sources.recordings import Recorder
from windrow.text import ByteCodec
from windrow.train.config import EstimatorConfig, LossConfig, ModelConfig, TrainConfig
from windrow.trajectory import Trajectory
from windrow.types import but


def with_training(**changes: Any) -> RolloutConfig:
    return RolloutConfig(rollout_batch_size=16, train_env_manager=but(LAKE, **changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"rollout": but(with_training(), rollout_batch_size=15)},
            r"rollout.rollout_batch_size must be a multiple of group_size \(4\), got 15; nearest: 12 or 16",
        ),
        ({"rollout": but(with_training(), tail=0.5, staleness=1.0)}, "tail needs staleness 0"),
        ({"rollout": with_training(sampling=Sampling(temperature=0.0))}, r"temperature must be above 0 in training"),
        ({"rollout": with_training(group_size=1)}, "group_size 1 leaves grpo nothing .* reinforce_pp or gae"),
    ],
)
def test_what_cannot_be_trained_on_is_refused_when_it_is_read(changes: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        Agentic(**asdict(small(**changes)))


@pytest.mark.parametrize("kind", ["reinforce", "reinforce_pp", "gae"])
def test_groups_of_one_are_fine_where_nothing_is_compared(kind: Any):
    file = small(rollout=with_training(group_size=1), train=TrainConfig(estimator=EstimatorConfig(kind=kind)))
    assert Agentic(**asdict(file)) == file


def test_a_validation_of_its_own_has_as_many_tasks_as_validate_says():
    own = EnvManagerConfig(env="frozen_lake", group_size=1, env_args={"size": 3})
    file = small(rollout=but(with_training(), val_env_manager=own))
    assert file.collecting.val_env_manager.max_tasks == file.validate.tasks == 16
    check_ready(file)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": ModelConfig(path="nowhere/at/all")}, "model folder nowhere/at/all has no config.json"),
        ({"model": but(MODEL, device="nowhere:0")}, "device nowhere:0"),
        ({"warm_start": WarmStart(recording="nowhere.rec")}, "recording nowhere.rec is not there"),
        (
            {"train": TrainConfig(reference="nowhere", loss=LossConfig(kl=0.1))},
            "train.reference is nowhere, which is no",
        ),
    ],
)
def test_what_is_missing_is_found_before_a_run_has_a_folder(changes: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        check_ready(small(**changes))


def test_a_run_that_goes_on_does_not_ask_for_what_its_warm_start_learnt_from():
    check_ready(small(warm_start=WarmStart(recording="nowhere.rec")), goes_on=True)


def test_a_missing_package_of_a_tracker_is_found_as_well(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(PACKAGES, "wandb", ("no_such_package",))
    with pytest.raises(ConfigError, match="tracker wandb needs the package no_such_package"):
        check_ready(small(trackers=[TrackerConfig(kind="wandb")]))


def test_validation_needs_tasks_that_end():
    own = but(LAKE, group_size=1, task_source=SeedTasks())
    with pytest.raises(ConfigError, match=r"rollout.val_env_manager.task_source never ends"):
        check_ready(small(rollout=but(with_training(), val_env_manager=own)))


class Shifted(ByteCodec):
    """Another language: every byte is one further."""

    def decode(self, tokens: Any) -> str:
        return super().decode((tokens + 1) % 256)


class Narrow(ByteCodec):
    """Knows the first tokens alone."""

    vocabulary = 40


def recorded(path: Path) -> tuple[Agentic, list[Trajectory]]:
    file = small()
    played = asyncio.run(demonstrate(file.collecting.train_env_manager.by_tag(), 3, ByteCodec()))
    with Recorder(path) as out:
        for each in played:
            out.write(each)
    return file, played


def test_a_recording_is_learnt_from_in_its_own_language_alone(tmp_path: Path):
    path = tmp_path / "some.rec"
    file, played = recorded(path)
    envs, lesson = file.collecting.train_env_manager.by_tag(), but(LESSON, recording=str(path), min_score=-1.0)
    found = asyncio.run(lessons(envs, ByteCodec(), lesson, 0))
    assert [each.score for each in found] == [each.score for each in played]
    assert np.array_equal(found[0].chains[0].token_ids, played[0].chains[0].token_ids)
    with pytest.raises(ConfigError, match=r"some.rec, g0.a0, turn 0, said '.*'; its tokens mean '.*' to the model's"):
        asyncio.run(lessons(envs, Shifted(), lesson, 0))
    with pytest.raises(ConfigError, match=r"has token \d+, and the model's tokenizer has 40 tokens"):
        asyncio.run(lessons(envs, Narrow(), lesson, 0))
