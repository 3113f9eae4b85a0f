"""What stays the same from step to step while the same requests are being sampled.

Promises: a crew is a copy: it is good as long as no request joins, leaves or moves (`Slots.shift` tells), and asking it
changes nothing but the numbers it has drawn ahead.
"""

import numpy as np
import torch
from torch import Tensor

from windrow.engines.torch.sampling import Numbers, Rules, uniforms
from windrow.engines.torch.slots import Slots

AHEAD = 32
"""Places of a turn whose uniform numbers are computed together, once a crew has lasted for a step."""


class Crew:
    """Some running slots, in order; `rows` None: all of them."""

    def __init__(self, slots: Slots, rows: Numbers | None, device: torch.device) -> None:
        self.shift = slots.shift
        self.where = slice(0, slots.busy) if rows is None else rows  # a slice is looked at without copying
        self.rows = rows = np.arange(slots.busy) if rows is None else rows
        self.stops = slots.stops[rows]
        self.limit = slots.limit[rows]
        self.spells = slots.spells[rows]
        self.any_spells = bool(self.spells.any())
        self.quiet = 0  # steps in which nobody reaches a limit or fills a chunk
        self.said: Tensor | None = None  # the tokens of the last step, if they can be fed as they are
        self._seed = slots.seed[rows]
        self._turn = slots.turn[rows]
        self._device = device
        self._uniform: Tensor | None = None  # [places, rows], of the places that come next
        self._used = 0
        self._rules = self._fixed_rules(slots)

    def rules(self, known: Numbers) -> Rules:
        """How the token after `known` others is drawn in each row; asked once per step."""
        if self._uniform is None:
            self._uniform = self._draw_ahead(known, 1)
        elif self._used == len(self._uniform):
            self._uniform = self._draw_ahead(known, AHEAD)
        self._rules.uniform = self._uniform[self._used]
        self._used += 1
        return self._rules

    def _draw_ahead(self, known: Numbers, places: int) -> Tensor:
        self._used = 0
        ahead = known - self._turn + np.arange(places)[:, None]
        return torch.from_numpy(uniforms(self._seed, ahead)).to(self._device)

    def _fixed_rules(self, slots: Slots) -> Rules:
        """What none of the rows asks for is left out."""
        rows = self.rows
        temperature, greedy = slots.temperature[rows], slots.greedy[rows]
        rules = Rules()
        if (temperature != 1).any():
            rules.temperature = self._there(temperature.astype(np.float32))
        if greedy.any():
            rules.greedy = self._there(greedy)
        if slots.cut[rows].any():
            rules.top_k, rules.top_p, rules.min_p = (
                self._there(column[rows]) for column in (slots.top_k, slots.top_p, slots.min_p)
            )
        if slots.allowed is not None and slots.picky[rows].any():
            rules.allowed = self._there(slots.allowed[rows])
        return rules

    def _there(self, column: np.ndarray) -> Tensor:
        return torch.from_numpy(column).to(self._device)
