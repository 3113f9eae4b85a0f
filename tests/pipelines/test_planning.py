"""From a training file to a plan, and from a plan to a file."""

import json
from pathlib import Path

import pytest
from tests.pipelines.kit import small
from tests.pipelines.test_placing import CRITIC, GAE, INFER, JUDGED, REWARD, TRAIN, a_file

from windrow.errors import ConfigError
from windrow.pipelines.config import Cloning
from windrow.pipelines.planning import planned, question_of, roles_of, settled
from windrow.pipelines.sizing import size_of
from windrow.store.run import RunFolder
from windrow.train.config import LoraConfig, ModelConfig, TinyConfig
from windrow.train.models import load_model

AUTO = (f"{INFER}=auto", f"{TRAIN}=auto")
LITTLE = (
    "rollout.rollout_batch_size=8", "rollout.train_env_manager.group_size=4", "rollout.train_env_manager.max_turns=2",
)  # fmt: skip


def test_a_file_that_leaves_nothing_to_a_plan_stays_as_it_is():
    file = small()
    assert planned(file).file is file
    assert planned(file).plan is None


def test_a_plan_becomes_devices_and_as_many_trainers(tmp_path: Path):
    found = planned(a_file(tmp_path, "devices=2", *AUTO, *LITTLE, "train.processes=1"))
    assert found.plan is not None
    layout = found.plan.layout
    assert found.file.layout == layout
    assert not found.file.roles.is_open
    assert found.file.train.processes == len(layout.train)


def test_a_thread_stays_a_thread(tmp_path: Path):
    file = a_file(tmp_path, "devices=2", *AUTO, *LITTLE)
    found = settled(file, question_of(a_file(tmp_path, "devices=2", f"{TRAIN}=[0]")).given)  # type: ignore[arg-type]
    assert (found.layout.train, found.train.processes) == ((0,), 0)


def test_a_plan_keeps_what_was_said(tmp_path: Path):
    asked = question_of(a_file(tmp_path, "devices=4", f"{INFER}=0-1", f"{TRAIN}=auto"))
    assert (asked.infer, asked.train, asked.given) == ((0, 1), None, None)
    unsaid = question_of(a_file(tmp_path, "devices=4", f"{TRAIN}=auto"))
    assert unsaid.infer == (0, 1, 2, 3), "nothing said is all devices, not left to a plan"


def test_every_role_that_is_played_has_its_devices(tmp_path: Path):
    file = a_file(tmp_path, f"{TRAIN}=[0]", "train.estimator.kind=gae", "train.loss.kl=0.1")
    assert roles_of(file, file.layout) == {
        "actor_infer": (0,), "actor_train": (0,), "reference": (0,), "critic": (0,),
    }  # fmt: skip


def test_a_plan_keeps_where_others_were_put_and_puts_the_rest_with_training(tmp_path: Path):
    more = (GAE, "train.loss.kl=0.1", "roles.reference.device_mapping=auto", f"{CRITIC}=[2]", f"{REWARD}=[1]")
    found = planned(a_file(tmp_path, "devices=3", *AUTO, *LITTLE, *JUDGED, *more))
    assert found.plan is not None
    assert roles_of(found.file, found.plan.layout) == {
        "actor_infer": found.file.layout.infer,
        "actor_train": found.file.layout.train,
        "reference": found.file.layout.train,
        "critic": (2,),
        "reward": (1,),
    }
    assert 1 not in found.file.layout.infer
    assert any("the reference sits with training" in reason for reason in found.plan.reasons)


def test_cloning_has_nothing_to_plan():
    with pytest.raises(ConfigError, match=r"pipeline sft .* nothing to plan"):
        question_of(Cloning())


def test_a_former_run_replaces_estimates(tmp_path: Path):
    file = a_file(tmp_path, "devices=2", *LITTLE)
    with RunFolder.create(tmp_path, "past", "pipeline: agentic\n") as run:
        for step in range(3):
            run.metrics.append(step + 1, {"run/learn_s": 5.0, "episode/turns/mean": 2.0, "episode/turns/max": 2.0})
    asked = question_of(file, run.path)
    assert asked.costs.learn_s == 5.0
    origins = {figure.name: figure.origin for figure in asked.figures}
    assert origins["training of a batch"] == origins["turns of an episode"] == "measured"
    assert origins["speed alone"] == "estimated"
    assert len(origins) == len(asked.figures)


def test_a_run_that_measured_nothing_is_refused(tmp_path: Path):
    with RunFolder.create(tmp_path, "past", "pipeline: agentic\n") as run:
        run.metrics.append(0, {"validation/success": 0.5})  # which is no step
    with pytest.raises(ConfigError, match="has measured nothing"):
        question_of(a_file(tmp_path), run.path)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2"])
def test_the_size_of_a_tiny_model_is_nearly_right(kind: str):
    config = ModelConfig(tiny=TinyConfig(kind=kind, context=16))  # type: ignore[arg-type]  # one of those above
    weights = sum(each.numel() for each in load_model(config, 0, config.tiny.vocabulary).parameters())
    assert size_of(config, "float32").parameters == pytest.approx(weights, rel=0.05)


def test_the_size_of_a_model_in_a_folder_is_read_from_its_heads(tmp_path: Path):
    config = ModelConfig(tiny=TinyConfig(context=16))
    model = load_model(config, 0, 300)
    model.save_pretrained(tmp_path / "model")
    found = size_of(ModelConfig(path=str(tmp_path / "model"), lora=LoraConfig(rank=2)), "bfloat16")
    assert found.parameters == sum(each.numel() for each in model.parameters())
    assert found.trained < found.parameters
    assert found.cache_bytes_per_token == 2 * 3 * 32 * 2  # keys and values, three layers, half the heads, two bytes


def test_a_folder_that_says_nothing_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        size_of(ModelConfig(path=str(tmp_path)), "float32")
    form = {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 8}), encoding="utf-8")
    with pytest.raises(ConfigError, match="does not say num_hidden_layers"):
        size_of(ModelConfig(path=str(tmp_path)), "float32")
    (tmp_path / "config.json").write_text(json.dumps(form), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"has no \*.safetensors"):
        size_of(ModelConfig(path=str(tmp_path)), "float32")
