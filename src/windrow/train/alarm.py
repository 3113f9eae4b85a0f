"""Alarms: for trainer and engines that do not agree about the same weights, and for batches that teach nothing.

Promises: they look at numbers that were computed anyway; they speak once for each streak of bad batches, and again only
after a good one; training is stopped only by the first, and only if it was told to.
"""

import logging
import math
from collections.abc import Mapping

from windrow.errors import TrainError
from windrow.train.config import TrainConfig

log = logging.getLogger(__name__)

NO_SIGNAL = "train/tokens_without_signal_share"
PATIENCE = 5
"""Batches in a row without anything to learn that are said to be too many; one or two are chance."""
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
            f"(temperature, top_p, top_k); windrow doctor CONFIG shows whether they agree before anything is trained"
        )


class SignalAlarm:
    """Watches whether there is anything to learn from batches at all."""

    def __init__(self) -> None:
        self._streak = 0  # batches without signal, one after the other, up to now

    def look(self, metrics: Mapping[str, float]) -> bool:
        """Whether no token of a batch had an advantage; `metrics` are those of its estimate."""
        if metrics.get(NO_SIGNAL, 0.0) < 1.0:
            if self._streak >= PATIENCE:
                log.info("there is something to learn again after %d batches", self._streak)
            self._streak = 0
            return False
        self._streak += 1
        if self._streak == PATIENCE:
            log.warning(
                "nothing was learnt from the last %d batches: no token had an advantage, as when all attempts of a "
                "group score alike; make tasks easier or harder, raise group_size or the temperature, or set "
                "filter: varied",
                self._streak,
            )
        return True
