"""The two consumers: the trainer, which makes a new version of every batch, and validation beside it.

Promises: a new version is published before the batch counts as trained, and the next batch is wanted after
both. A batch that is handed over twice is trained on once. Devices that training borrows are its own from the batch to
the update, and the hand-over before it costs it time; where it borrows all, the engines are held instead, because the
scheduler never gives its last one away.
"""

import numpy as np

from windrow.core.commands import DeliverBatch
from windrow.core.events import (
    BatchTrained,
    BatchWanted,
    ExpandWanted,
    ResumeWanted,
    ShrinkWanted,
    SuspendWanted,
    VersionPublished,
)
from windrow.sim.clock import Clock
from windrow.sim.config import SimConfig
from windrow.sim.draws import Draws
from windrow.sim.fleet import Fleet
from windrow.sim.ledger import Ledger
from windrow.sim.scheduler import Tell
from windrow.sim.work import batch_work_s

TRAINER = "trainer"
VALIDATION = "validation"
UPDATE = "update"
"""Who holds the engines while they take new weights."""


class Validator:
    """Wants a validation batch every few steps, unless it still waits for the last one."""

    def __init__(self, config: SimConfig, ledger: Ledger, tell: Tell) -> None:
        self.every = config.validation.every if config.validation else 0
        self.size = config.validation.tasks * config.machine.val.group_size if config.validation else 0
        self.ledger = ledger
        self.tell = tell
        self.round = 0
        self.is_waiting = False

    def trained(self, step: int) -> None:
        """The trainer has finished a step."""
        if self.every and (step + 1) % self.every == 0 and not self.is_waiting:
            self.is_waiting = True
            self.tell(BatchWanted(VALIDATION, "val", self.size, self.round))

    def take(self, batch: DeliverBatch) -> None:
        """Receive a batch."""
        if self.is_waiting and batch.step == self.round:
            self.ledger.delivered(batch)
            self.is_waiting = False
            self.round += 1
            self.tell(BatchTrained(batch.batch))


class Trainer:
    """Wants a batch, trains on it, updates the engines, and wants the next.

    consumes      a batch
    waits for     its delivery, its training time, and the engines' update
    unblocked by  DeliverBatch, the clock
    """

    def __init__(self, config: SimConfig, draws: Draws, fleet: Fleet, ledger: Ledger, clock: Clock, tell: Tell) -> None:
        self.config = config
        self.draws = draws
        self.fleet = fleet
        self.ledger = ledger
        self.clock = clock
        self.tell = tell
        self.validator = Validator(config, ledger, tell)
        self.step = 0  # the step that is waited for or trained
        self.is_waiting = False
        self.has_ended = False  # no batch will come any more
        share = config.trainer.share_of_work
        self.borrows = config.trainer.borrows
        self.pauses = len(set(self.borrows)) == config.engines.count * config.engines.devices
        self.usual_s = share * batch_work_s(config) / config.slots if share else 0.0

    def want(self) -> None:
        """Ask for the next batch."""
        self.is_waiting = True
        self.ledger.wanted()
        self.tell(BatchWanted(TRAINER, "train", self.config.policy.batch_size, self.step))

    def take(self, batch: DeliverBatch) -> None:
        """Receive a batch."""
        if not self.is_waiting or batch.step != self.step:
            return
        self.is_waiting = False
        self.ledger.delivered(batch)
        self.clock.after(self._borrow() + self.time_s(batch.step), self._publish, batch)

    def time_s(self, step: int) -> float:
        """How long the training of a step takes."""
        shape = self.config.trainer.time_s
        if shape is None:
            return self.usual_s
        normal = self.draws.numbers("normal", "training", (step,), 1)
        return float(np.asarray(shape.shape(normal))[0])

    def _borrow(self) -> float:
        """Take the engines' devices, if they are shared; how long that takes."""
        if not self.borrows:
            return 0.0
        self.tell(SuspendWanted(f"training {self.step}") if self.pauses else ShrinkWanted(self.borrows))
        return self.config.engines.hand_over_s

    def _give_back(self) -> None:
        if self.borrows and self.pauses:
            self.clock.after(self.config.engines.hand_over_s, self._let_go, self.step)
        elif self.borrows:
            self.tell(ExpandWanted(self.borrows))

    def _let_go(self, step: int) -> None:
        self.tell(ResumeWanted(f"training {step}"))

    def _publish(self, batch: DeliverBatch) -> None:
        """The batch has become a new version."""
        update_s = self.config.engines.update_s
        if update_s == 0.0:
            self.fleet.publish(self.step + 1)
            self.tell(VersionPublished(self.step + 1, loaded=True))
            self._finish(batch)
            return
        self.tell(SuspendWanted(UPDATE))
        self.tell(VersionPublished(self.step + 1))
        self.clock.after(update_s, self._updated, batch)

    def _updated(self, batch: DeliverBatch) -> None:
        self.fleet.confirm(self.step + 1)
        self.tell(ResumeWanted(UPDATE))
        self._finish(batch)

    def _finish(self, batch: DeliverBatch) -> None:
        self.tell(BatchTrained(batch.batch))
        self.ledger.trained(len(batch.attempts))
        self.validator.trained(self.step)
        self._give_back()
        self.step += 1
        if batch.last:
            self.has_ended = True
        else:
            self.want()
