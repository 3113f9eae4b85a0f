"""An alarm for trainer and engines that do not agree about the same weights.

Promises: it looks at numbers that were computed anyway; it speaks once for each streak of bad batches, and again only
after a good one; it stops training only if it was told to.
"""

import logging
import math
from collections.abc import Mapping

from windrow.errors import TrainError
from windrow.train.config import TrainConfig

log = logging.getLogger(__name__)

MEAN, MOST = "train/mismatch_mean", "train/mismatch_max"


class MismatchAlarm:
    """Watches how far the log-probabilities of trainer and engines lie apart on tokens of the current version."""

    def __init__(self, config: TrainConfig) -> None:
        self._threshold = config.mismatch_alarm
        self._stops = config.on_mismatch == "stop"
        self._streak = 0  # bad batches, one after the other, up to now

    def look(self, metrics: Mapping[str, float]) -> bool:
        """Whether these are bad; a batch without tokens of the current version says nothing.

        Raises TrainError if it may stop training.
        """
        mean = metrics.get(MEAN)
        if mean is None:
            return False
        if math.isfinite(mean) and mean <= self._threshold:
            if self._streak:
                log.info("trainer and engines agree again after %d batches", self._streak)
            self._streak = 0
            return False
        self._streak += 1
        if self._stops:
            raise TrainError(self._words(mean, metrics.get(MOST)))
        if self._streak == 1:
            log.warning("%s", self._words(mean, metrics.get(MOST)))
        return True

    def _words(self, mean: float, most: float | None) -> str:
        worst = "" if most is None else f" (at worst {most:.3g})"
        return (
            f"log-probabilities of trainer and engines differ by {mean:.3g}{worst} on tokens that the current weights "
            f"sampled, and train.mismatch_alarm is {self._threshold:g}; the engines may have other weights (compare "
            f"the checksums of the last update), another dtype, or sample in a way that the trainer does not know "
            f"(temperature, top_p, top_k); train.optimizer.lr=0 shows whether they agree before anything is trained"
        )
