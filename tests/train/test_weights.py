"""What leaves a trainer is what engines serve, and the trainer does not notice."""

import asyncio
import resource
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from windrow.engines.openai.checkpoint import checksum_of as checksum_of_files
from windrow.engines.torch import TorchEngine
from windrow.engines.torch.weights import checksum, read
from windrow.errors import ConfigError, TrainError
from windrow.tiny import tiny_model
from windrow.train.rooms import sweep
from windrow.train.weights import (
    KEPT,
    ROOM,
    LocalWeights,
    Packed,
    SharedWeights,
    confirm,
    deliver,
    engine_weights,
    read_manifest,
)
from windrow.types import but

IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])


def tied() -> PreTrainedModel:
    torch.manual_seed(5)
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=64, num_key_value_heads=1, tie_word_embeddings=True, **sizes))


def adapted(model: PreTrainedModel, **settings: Any) -> PeftModel:
    """With adapters that do something, which fresh ones do not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft tells that it found out how GPT-2 stores its matrices
        wrapped = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", **settings))
    assert isinstance(wrapped, PeftModel)
    torch.manual_seed(9)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_" in name:
                parameter.normal_(0.0, 0.1)
    return wrapped.eval()


def logits(model: torch.nn.Module) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(input_ids=IDS).logits
    return found


def bits(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_plain_weights_are_a_copy_of_the_state_dict():
    model = tiny_model()
    found = engine_weights(model)
    assert same(found, dict(model.state_dict()))
    with torch.no_grad():
        next(model.parameters()).add_(1)
    assert not same(found, dict(model.state_dict()))


@pytest.mark.parametrize("kind", ["qwen2", "llama", "gpt2"])
def test_a_model_with_adapters_leaves_as_a_plain_one_that_says_the_same(kind):
    wrapped = adapted(tiny_model(kind))
    before, said = bits(wrapped), logits(wrapped)
    plain = tiny_model(kind, seed=7)
    plain.load_state_dict(engine_weights(wrapped), strict=True)
    # the same sum in another order: the spacing of float32 near the largest logit, a few hundred times
    assert torch.allclose(logits(plain), said, atol=1e-4 * float(said.abs().max()))
    assert not torch.allclose(logits(tiny_model(kind)), said, atol=1e-2)  # the adapters are not idle
    assert same(bits(wrapped), before)


def test_adapters_that_are_switched_off_or_merged_are_not_added_again():
    wrapped = adapted(tiny_model())
    expected = engine_weights(wrapped)
    wrapped.merge_adapter()
    for name, tensor in engine_weights(wrapped).items():
        assert torch.allclose(tensor, expected[name], atol=1e-6), name


def test_an_adapter_on_a_tied_head_is_refused():
    model = tied()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft warns of it as well
        wrapped = get_peft_model(model, LoraConfig(r=2, target_modules=["lm_head"]))
    assert isinstance(wrapped, PeftModel)
    with pytest.raises(ConfigError, match=r"lm_head has an adapter and shares its weights"):
        engine_weights(wrapped)


@pytest.mark.parametrize("settings", [{"use_dora": True}, {"lora_bias": True}])
def test_adapters_that_cannot_be_merged_are_refused_by_name(settings):
    wrapped = adapted(tiny_model("qwen2"), exclude_modules=["o_proj", "gate_proj", "up_proj", "down_proj"], **settings)
    with pytest.raises(ConfigError, match=r"q_proj has an adapter of type Linear, of which only plain LoRA"):
        engine_weights(wrapped)


def test_a_tied_head_is_one_tensor_under_two_names():
    found = engine_weights(tied())
    assert found["lm_head.weight"] is found["model.embed_tokens.weight"]
    assert LocalWeights(tied()).pack(1).bytes == 4 * sum(p.numel() for p in tied().parameters())


def test_numbers_become_those_of_the_engine():
    found = engine_weights(tiny_model(), dtype="bfloat16")
    assert {tensor.dtype for tensor in found.values()} == {torch.bfloat16}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("make", [tiny_model, tied, lambda: adapted(tiny_model())], ids=["plain", "tied", "lora"])
def test_an_engine_confirms_the_checksum_of_the_trainer(make, dtype, tmp_path: Path):
    async def play() -> None:
        model = make()
        engine = TorchEngine("e0", make_plain(model), dtype=dtype)
        await engine.start()
        local = LocalWeights(model, dtype)
        with SharedWeights(tmp_path) as shared:
            for packed in (local.pack(1), shared.pack(2, model, dtype)):
                said = await engine.load(packed.version, packed.weights)
                assert (said.version, said.checksum) == (packed.version, packed.checksum)
        await engine.close()

    asyncio.run(play())


def make_plain(model: torch.nn.Module) -> PreTrainedModel:
    if isinstance(model, PeftModel):
        return tiny_model(seed=3)
    assert isinstance(model, PreTrainedModel)
    return type(model)(model.config)


def test_two_sets_of_tensors_are_filled_in_turns_and_never_replaced():
    model = tiny_model()
    weights = LocalWeights(model)
    packed = []
    for version in range(1, 5):
        with torch.no_grad():
            next(model.parameters()).fill_(version)
        packed.append(weights.pack(version))
        if version >= 2:  # what was handed out before is as it was
            assert packed[-2].checksum == checksum_of(packed[-2])
    places = [{name: tensor.data_ptr() for name, tensor in tensors(each).items()} for each in packed]
    assert places[0] == places[2] != places[1] == places[3]
    assert len({each.checksum for each in packed}) == 4


def tensors(packed: Packed) -> dict[str, Tensor]:
    assert isinstance(packed.weights, dict)
    return packed.weights


def checksum_of(packed: Packed) -> str:
    model = tiny_model(seed=1)
    model.load_state_dict(tensors(packed))
    return checksum(model)


def test_a_folder_holds_the_newest_versions_and_what_is_in_it_is_a_checkpoint(tmp_path: Path):
    model = tied()
    with SharedWeights(tmp_path) as shared:
        for version in range(1, KEPT + 2):
            shared.pack(version, model)
        packed = shared.pack(KEPT + 2, model)
        assert sorted(path.name for path in shared.root.iterdir() if path.is_dir()) == ["v3", "v4"]
        folder = packed.weights
        assert isinstance(folder, Path)
        assert set(read(folder)) == set(model.state_dict()) - {"lm_head.weight"}
        manifest = read_manifest(folder)
        assert (manifest.version, manifest.checksum, manifest.bytes) == (4, packed.checksum, packed.bytes)
        assert manifest.names["model.embed_tokens.weight"] == ["lm_head.weight", "model.embed_tokens.weight"]
        model.config.save_pretrained(folder)
        again = AutoModelForCausalLM.from_pretrained(folder)
        assert checksum(again) == packed.checksum
    assert list(tmp_path.iterdir()) == []


def test_a_version_that_cannot_be_written_leaves_nothing_and_the_old_ones_stay(tmp_path: Path):
    with SharedWeights(tmp_path) as shared:
        shared.pack(1, tiny_model())
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))  # as if there were no more room
        try:
            with pytest.raises(TrainError, match=r"weights of version 2 .* cannot be written to .*; make room there"):
                shared.pack(2, tiny_model())
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert sorted(path.name for path in shared.root.iterdir()) == ["owner", "v1"]
        assert read_manifest(shared.root / "v1").version == 1


OWNER = """
import sys, time
from pathlib import Path
from windrow.tiny import tiny_model
from windrow.train.rooms import sweep
from windrow.train.weights import SharedWeights
shared = SharedWeights(Path(sys.argv[1]))
shared.pack(1, tiny_model())
print(shared.root, flush=True)
time.sleep(600)
"""


def test_folders_of_the_dead_are_swept_and_those_of_the_living_are_not(tmp_path: Path):
    with subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout is not None
            root = Path(owner.stdout.readline().strip())
            assert str(owner.pid) in root.name
            assert (root / "v1" / "model.safetensors").is_file()
            assert sweep(ROOM, tmp_path) == []
        finally:
            owner.kill()
    with SharedWeights(tmp_path) as shared:
        assert list(tmp_path.iterdir()) == [shared.root]


def test_delivery_compares_what_engines_confirm():
    packed = LocalWeights(tiny_model()).pack(3)
    asked = []

    def answering(checksum: str):
        async def update(version: int, weights: object) -> dict[str, object]:
            asked.append((version, weights))
            return {"checksum": checksum}

        return update

    metrics = asyncio.run(deliver(packed, answering(packed.checksum)))
    assert asked == [(3, packed.weights)]
    assert metrics["weights/bytes"] == 4 * sum(p.numel() for p in tiny_model().parameters())
    assert metrics["weights/seconds"] >= metrics["weights/pack_seconds"] > 0
    asyncio.run(deliver(packed, answering("")))  # engines that cannot say
    with pytest.raises(TrainError, match=r"version 3 has checksum .* in the trainer and other in the engines"):
        asyncio.run(deliver(packed, answering("other")))


def test_a_server_confirms_the_files_that_it_read(tmp_path: Path):
    with SharedWeights(tmp_path) as shared:
        packed = shared.pack(1, tiny_model())
        assert isinstance(packed.weights, Path)
        confirm(packed, checksum_of_files(packed.weights))
        with pytest.raises(TrainError):
            confirm(but(packed, checksum="other"), packed.checksum)
