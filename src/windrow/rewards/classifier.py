"""A model that says how good a text is: a sequence classification model with one label.

Promises: a row is scored as it stands, by its last real token, whatever is padded behind it and whatever is beside it;
nothing ever changes the model, and nothing is downloaded.
"""

from pathlib import Path
from typing import TYPE_CHECKING, cast

from windrow.errors import ConfigError, blame

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel


def classifier_folder(path: str) -> Path:
    """The folder behind a path; refused if there is no model in it."""
    folder = Path(path).expanduser()
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"reward model {folder} has no config.json; give a folder of a sequence classification model that "
            f"save_pretrained wrote"
        )
    return folder


def load_classifier(path: str, device: str = "cpu") -> "PreTrainedModel":
    """The model of a folder, frozen, on its device."""
    import torch
    from transformers import AutoModelForSequenceClassification

    folder = classifier_folder(path)
    with blame(ConfigError, f"reward model {folder} cannot be read"):
        model: PreTrainedModel = AutoModelForSequenceClassification.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True
        )
    if model.config.num_labels != 1:
        raise ConfigError(f"reward model {path} has {model.config.num_labels} labels; one that scores has 1")
    with blame(ConfigError, f"device {device}"):
        torch.nn.Module.to(model, device)
    model.requires_grad_(requires_grad=False)
    torch.nn.Module.eval(model)
    return model


def score_rows(model: "PreTrainedModel", ids: "Tensor", real: "Tensor") -> "Tensor":
    """A score for each row (B,); `real` is 1 where there is a token and 0 behind the last one.

    The model looks for the last token that is no padding; so padding must be a token that no row has.
    """
    import torch

    unused = _unused(ids[real.bool()], model.config.get_text_config().vocab_size)
    model.config.get_text_config().pad_token_id = unused
    model.config.pad_token_id = unused
    padded = torch.where(real.bool(), ids, unused)
    with torch.no_grad():
        return cast("Tensor", model(input_ids=padded, attention_mask=real, use_cache=False).logits)[:, 0]


def _unused(tokens: "Tensor", vocabulary: int) -> int:
    """The first token that does not occur."""
    import torch

    there = torch.zeros(vocabulary + 1, dtype=torch.bool, device=tokens.device)
    there[tokens] = True
    return int((~there).nonzero()[0])
