"""A model that says how good a text is.

Promises: a row is scored as it stands, by its last real token, whatever is padded behind it and whatever is beside it;
nothing ever changes the model.
"""

from typing import cast

import numpy as np
import torch
from torch import Tensor

from windrow.protocol import DataProto
from windrow.train import micro
from windrow.train.config import MicroConfig
from windrow.train.models import load_classifier
from windrow.train.roles.base import added
from windrow.train.rows import column
from windrow.train.threads import use_threads


class RewardModel:
    """A sequence classification model with one label."""

    def __init__(
        self, path: str, *, device: str = "cpu", micro: MicroConfig | None = None, threads: int | None = None
    ) -> None:
        self.model = load_classifier(path, device)
        self._micro = micro or MicroConfig()
        self._threads = threads

    def scores(self, batch: DataProto) -> DataProto:
        """The batch with `model_scores` (B,), one for each row."""
        use_threads(self._threads)
        ids = column(batch, "input_ids").to(self.model.device)
        real = column(batch, "attention_mask").to(self.model.device)
        lengths = real.sum(1).cpu().numpy().astype(np.int64)
        found = torch.zeros(len(ids))
        with torch.no_grad():
            for part in micro.cut(lengths, self._micro.tokens):
                rows, width = torch.tensor(part), max(1, int(lengths[part].max()))
                found[rows] = self._scored(ids[rows, :width], real[rows, :width]).float().cpu()
        return added(batch, model_scores=found)

    def _scored(self, ids: Tensor, real: Tensor) -> Tensor:
        """The model looks for the last token that is no padding; so padding must be a token that no row has."""
        unused = _unused(ids[real.bool()], self.model.config.get_text_config().vocab_size)
        self.model.config.get_text_config().pad_token_id = unused
        self.model.config.pad_token_id = unused
        padded = torch.where(real.bool(), ids, unused)
        return cast("Tensor", self.model(input_ids=padded, attention_mask=real, use_cache=False).logits)[:, 0]


def _unused(tokens: Tensor, vocabulary: int) -> int:
    """The first token that does not occur."""
    there = torch.zeros(vocabulary + 1, dtype=torch.bool, device=tokens.device)
    there[tokens] = True
    return int((~there).nonzero()[0])
