"""The models that are trained, and their tokenizers: from a folder, or made on the spot.

Promises: weights are float32 whatever the arithmetic is; nothing in a model is random but the dropout of adapters,
because the probability that a policy gives to a token is compared with what it gave before. What cannot be had (a
folder, a package, a way to compute attention) is refused by name before anything is trained. Nothing is downloaded.
"""

import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from windrow.errors import ConfigError, blame
from windrow.text import read_tokenizer
from windrow.tiny import tiny_model, trained_tokenizer
from windrow.train.config import LoraConfig, ModelConfig

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

TINY = "tiny"
"""The path of a model that has none."""
NO_PEFT = "model.lora needs the package peft; pip install 'windrow[lora]'"


def check_model(config: ModelConfig) -> None:
    """Refuse what `load_model` would refuse, as far as that can be seen without loading anything."""
    if config.path != TINY:
        _folder(config.path)
    if config.lora is not None and importlib.util.find_spec("peft") is None:
        raise ConfigError(NO_PEFT)
    if config.device != "cpu":
        import torch

        with blame(ConfigError, f"device {config.device}"):
            torch.empty(0, device=config.device)


def load_model(config: ModelConfig, seed: int = 0, vocabulary: int | None = None) -> "PreTrainedModel":
    """A causal language model on its device, in eval mode, with adapters if the configuration has some.

    `vocabulary` is the number of tokens of a model that is made on the spot: as many as its tokenizer really has.
    """
    import torch

    model = _tiny(config, seed, vocabulary) if config.path == TINY else _from_folder(config)
    with blame(ConfigError, f"device {config.device}"):
        torch.nn.Module.to(model, config.device)
    if config.lora is not None:
        model = _adapted(model, config.lora, seed)
    if config.activation_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if config.lora is not None:
            model.enable_input_require_grads()  # type: ignore[no-untyped-call]  # transformers'
    torch.nn.Module.eval(model)
    return model


def load_tokenizer(config: ModelConfig, texts: Iterable[str] = ()) -> "PreTrainedTokenizerFast":
    """The tokenizer of a folder; for a model that is made on the spot, one that is trained on these texts."""
    if config.path == TINY:
        return trained_tokenizer(texts, config.tiny.vocabulary)
    return read_tokenizer(_folder(config.path))


def _tiny(config: ModelConfig, seed: int, vocabulary: int | None) -> "PreTrainedModel":
    tiny = config.tiny
    model = tiny_model(
        tiny.kind,
        seed,
        tiny.vocabulary if vocabulary is None else vocabulary,
        tiny.context,
        tiny.layers,
        hidden=tiny.hidden,
        heads=tiny.heads,
        scale=1.0,
        spread=tiny.hidden**-0.5,
    )
    with blame(ConfigError, f"attention {config.attention}"):
        model.set_attn_implementation(config.attention)
    return silenced(model)


def _from_folder(config: ModelConfig) -> "PreTrainedModel":
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = _folder(config.path)
    with blame(ConfigError, f"model folder {folder} cannot be read"):
        settings = AutoConfig.from_pretrained(folder, local_files_only=True)
        _still(settings)
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            folder,
            config=settings,
            dtype=torch.float32,
            attn_implementation=config.attention,
            local_files_only=True,
        )
    return silenced(model)


def _folder(path: str) -> Path:
    folder = Path(path).expanduser()
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"model folder {folder} has no config.json; give a folder that save_pretrained wrote, or tiny"
        )
    return folder


def _still(settings: "PretrainedConfig") -> None:
    """Set every share of dropout to 0."""
    for name, value in settings.to_dict().items():
        if name.endswith(("dropout", "pdrop")) and isinstance(value, float):
            setattr(settings, name, 0.0)


def silenced(model: "PreTrainedModel") -> "PreTrainedModel":
    """The same model without dropout, also where it was made already."""
    import torch

    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def _adapted(model: "PreTrainedModel", lora: LoraConfig, seed: int) -> "PreTrainedModel":
    """Frozen weights with adapters that change nothing yet."""
    import torch
    from transformers.pytorch_utils import Conv1D

    try:
        import peft
    except ImportError as error:
        raise ConfigError(NO_PEFT) from error
    settings = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]  # a float scales as well as an int
        lora_dropout=lora.dropout,
        target_modules=list(lora.targets) or "all-linear",
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),  # GPT-2 keeps matrices lying
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]), blame(ConfigError, f"lora.targets {list(lora.targets) or 'all'}"):
        torch.manual_seed(seed)
        adapted: PreTrainedModel = peft.get_peft_model(model, settings)  # type: ignore[assignment]  # used as one
    return adapted
