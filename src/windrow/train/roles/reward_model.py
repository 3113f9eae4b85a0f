"""A model that says how good the rows of a batch are.

Promises: those of `rewards.classifier`, by which it scores. For episodes as they end there is the reward `model`.
"""

import numpy as np
import torch

from windrow.protocol import DataProto
from windrow.rewards.classifier import load_classifier, score_rows
from windrow.train import micro
from windrow.train.config import MicroConfig
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
        for part in micro.cut(lengths, self._micro.tokens):
            rows, width = torch.tensor(part), max(1, int(lengths[part].max()))
            found[rows] = score_rows(self.model, ids[rows, :width], real[rows, :width]).float().cpu()
        return added(batch, model_scores=found)
