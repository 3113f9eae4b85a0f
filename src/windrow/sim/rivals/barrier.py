"""The batch barrier: a batch is begun when the one before it is trained on, and played in the order of arrival."""

from windrow.core.settings import Settings
from windrow.sim.rivals.rival import Rival


class Barrier(Rival):
    """Every free slot plays the next seat of the batch; when none is left, slots idle until it is trained on."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, batches=1)
