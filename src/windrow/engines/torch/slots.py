"""The sequences that the engine holds: running ones first, then ended ones whose cache may be of use again.

Promises: the slots 0 to `busy` - 1 are all and only the running ones, so that a forward sees them without copying; a
slot's first `done` tokens, and no more, are in the store; an idle slot is given up only when no empty one is left, the
longest unused first. Whether two sequences begin alike is decided by comparing tokens.

Numbers are numpy arrays over all slots, so that a step looks at all of them at once.
"""

from collections.abc import Sequence

import numpy as np

from windrow.engines.torch.store import KvStore
from windrow.engines.torch.turns import Turn
from windrow.requests import Tokens
from windrow.types import Value

FIRST_WIDTH = 128
COMPARED_AT_ONCE = 64
"""Tokens by which prompts are compared before those that differ are left out."""
WORTH_COPYING = 8
"""Tokens; fewer are computed as fast as they are copied."""

ROW = np.dtype(
    [
        ("known", np.int64),  # tokens of the sequence
        ("done", np.int64),  # how many of them are in the store
        ("prompt", np.int64),  # how many of them came with the request
        ("turn", np.int64),  # where the turn's own tokens begin
        ("sent", np.int64),  # how many of them the client has
        ("limit", np.int64),  # it ends when it knows so many
        ("stale", np.int64),  # the first so many in the store are of older weights
        ("used", np.int64),  # when it came or, if it is idle, when it left
        ("seed", np.uint64),
        ("temperature", np.float64),  # 1 if greedy
        ("greedy", np.bool_),
        ("cut", np.bool_),  # top-k, top-p or min-p
        ("top_k", np.int64),
        ("top_p", np.float64),
        ("min_p", np.float64),
        ("picky", np.bool_),  # not all tokens are allowed
        ("spells", np.bool_),  # has stop texts
        ("family", np.int64),  # whose requests begin alike; 0 if nobody says
    ]
)


class Match(Value, frozen=True):
    """A slot that begins like a prompt."""

    slot: int
    shared: int
    """Tokens."""


class Slots:
    """The table; `store` moves along with it."""

    def __init__(self, count: int, vocabulary: int, store: KvStore) -> None:
        self.count = count
        self.busy = 0
        self.shift = 0  # grows when a sequence joins, leaves or moves
        self.turns: list[Turn | None] = [None] * count
        self.tokens = np.zeros((count, FIRST_WIDTH), dtype=np.int32)
        self.logprobs = np.zeros((count, FIRST_WIDTH), dtype=np.float32)
        self.stops = np.full((count, 1), -1, dtype=np.int64)
        self.allowed: np.ndarray | None = None  # [slots, vocabulary], made when somebody first asks for it
        self._vocabulary = vocabulary
        self._store = store
        self._clock = 0
        self._rows = np.zeros(count, dtype=ROW)
        self.known = self._rows["known"]
        self.done = self._rows["done"]
        self.prompt = self._rows["prompt"]
        self.turn = self._rows["turn"]
        self.sent = self._rows["sent"]
        self.limit = self._rows["limit"]
        self.stale = self._rows["stale"]
        self.used = self._rows["used"]
        self.seed = self._rows["seed"]
        self.temperature = self._rows["temperature"]
        self.greedy = self._rows["greedy"]
        self.cut = self._rows["cut"]
        self.top_k = self._rows["top_k"]
        self.top_p = self._rows["top_p"]
        self.min_p = self._rows["min_p"]
        self.picky = self._rows["picky"]
        self.spells = self._rows["spells"]
        self.family = self._rows["family"]

    def match(self, prompt: Tokens, *, computed: bool) -> Match:
        """The slot that shares most with a prompt: of what is in the store, or of all that it will have there."""
        reach = np.minimum(self.done if computed else self.known, prompt.size - 1)
        if not computed:
            reach[self.busy :] = 0
        at = 0
        alive = np.flatnonzero(reach > 0)
        best = Match(-1, 0)
        while alive.size:
            end = at + COMPARED_AT_ONCE
            window = prompt[at:end]
            same = self.tokens[alive, at : at + window.size] == window[: self.tokens.shape[1] - at]
            run = np.where(same.all(1), same.shape[1], same.argmin(1))
            shared = np.minimum(at + run, reach[alive])
            longest = int(shared.argmax())
            if shared[longest] > best.shared:
                best = Match(int(alive[longest]), int(shared[longest]))
            alive = alive[(shared >= end) & (reach[alive] > end)]
            at = end
        return best

    def continued(self, turns: Sequence[Turn]) -> list[tuple[int, Turn]]:
        """Turns that go on from where an idle slot of their family ended, each with that slot; no two with the same."""
        found: dict[int, Turn] = {}
        for turn in turns:
            for slot in self._relatives(turn.family):
                if slot not in found and self._goes_on(turn.request.prompt, slot):
                    found[slot] = turn
                    break
        return [*found.items()]

    def go_on(self, pairs: Sequence[tuple[int, Turn]], limits: Sequence[int]) -> int:
        """Make turns running ones where `continued` found what they go on from; says how many tokens are reused."""
        first, count = self.busy, len(pairs)
        places = self._gathered([slot for slot, _ in pairs])
        shared = 0
        for place, (_, turn), limit in zip(places, pairs, limits, strict=True):
            reused = min(int(self.done[place]), turn.request.prompt.size - 1)
            self.done[place] = reused
            self.stale[place] = min(int(self.stale[place]), reused)
            self._write(place, turn, limit)
            self._clock += 1
            self.used[place] = self._clock
            turn.slot = place
            self.turns[place] = turn
            shared += reused
        self.busy = first + count
        self.shift += 1
        return shared

    def seat(self, turn: Turn, limit: int) -> int:
        """Make a turn a running one, on what it can use of the store; says how many tokens that is."""
        prompt = turn.request.prompt
        found = self.match(prompt, computed=True)
        target = self._vacant(found)
        shared = found.shared if found.slot == target or found.shared >= WORTH_COPYING else 0
        if shared and found.slot != target:
            self._store.copy(found.slot, target, 0, shared)
            self.stale[target] = self.stale[found.slot]
        self.stale[target] = min(int(self.stale[target]), shared)
        self.done[target] = shared
        self._write(target, turn, limit)
        self._clock += 1
        self.used[target] = self._clock
        self._swap([target], [self.busy])
        turn.slot = self.busy
        self.turns[turn.slot] = turn
        self.busy += 1
        self.shift += 1
        return shared

    def leave(self, *slots: int) -> None:
        """Make running sequences idle ones."""
        left = self.busy - len(slots)
        for slot in slots:
            turn = self.turns[slot]
            assert turn is not None
            turn.slot = -1
            turn.follows = None
            self.turns[slot] = None
            self._clock += 1
            self.used[slot] = self._clock
        self.shift += 1
        holes = [slot for slot in slots if slot < left]
        stay = [slot for slot in range(left, self.busy) if self.turns[slot] is not None]
        self.busy = left
        self._swap(holes, stay)

    def forget_cache(self, slot: int) -> None:
        """Nothing that the store has of this slot is of use any more."""
        self.done[slot] = self.stale[slot] = 0
        self._store.wipe(slot)

    def forget_store(self) -> None:
        """Nothing in the store is of use any more; running sequences have to be computed again."""
        self.done[:] = 0
        self.stale[:] = 0
        self._rows[self.busy :] = np.zeros((), dtype=ROW)

    def _relatives(self, family: int) -> list[int]:
        """Idle slots of a family, those with most in the store first."""
        if not family:
            return []
        rows = self.busy + np.flatnonzero(self.family[self.busy :] == family)
        relatives: list[int] = rows[(-self.done[rows]).argsort(kind="stable")].tolist()
        return relatives

    def _goes_on(self, prompt: Tokens, slot: int) -> bool:
        """Whether a prompt begins with all that the store has of a slot."""
        done = int(self.done[slot])
        if not 0 < done <= prompt.size or self.tokens[slot, done - 1] != prompt[done - 1]:
            return False
        return bool((self.tokens[slot, :done] == prompt[:done]).all())

    def _gathered(self, idle: Sequence[int]) -> list[int]:
        """Bring some idle slots together behind the busy ones; says where each is then."""
        places = range(self.busy, self.busy + len(idle))
        taken = set(idle)
        away = [slot for slot in idle if slot not in places]
        free = [place for place in places if place not in taken]
        self._swap(away, free)
        moved = dict(zip(away, free, strict=True))
        return [moved.get(slot, slot) for slot in idle]

    def _vacant(self, found: Match) -> int:
        """Where a new sequence goes: on its own beginning if nothing else is lost by that, else the longest unused."""
        own = found.slot >= self.busy and found.shared >= self.done[found.slot] - 1
        if own:
            return found.slot
        idle = np.where(self.done[self.busy :] > 0, self.used[self.busy :] + 1, 0)  # empty ones first
        if found.slot >= self.busy and idle.size > 1:
            idle[found.slot - self.busy] = self._clock + 2  # rather copied than written over
        return self.busy + int(idle.argmin())

    def _write(self, slot: int, turn: Turn, limit: int) -> None:
        request, sampling = turn.request, turn.request.sampling
        size = request.prompt.size
        self._widen(limit + 1, turn.stops.size)
        self.tokens[slot, :size] = request.prompt
        self.known[slot] = self.prompt[slot] = self.sent[slot] = size
        self.turn[slot] = size - request.sampled
        self.limit[slot] = limit
        self.seed[slot] = np.uint64(request.seed & 0xFFFF_FFFF_FFFF_FFFF)
        self.greedy[slot] = sampling.temperature == 0
        self.temperature[slot] = sampling.temperature or 1.0
        self.top_k[slot], self.top_p[slot], self.min_p[slot] = sampling.top_k, sampling.top_p, sampling.min_p
        self.cut[slot] = bool(sampling.top_k) or sampling.top_p < 1 or sampling.min_p > 0
        self.spells[slot] = turn.stop_window > 0
        self.family[slot] = turn.family
        self.stops[slot] = -1
        self.stops[slot, : turn.stops.size] = turn.stops
        self._allow(slot, sampling.allowed_token_ids)

    def _allow(self, slot: int, ids: tuple[int, ...]) -> None:
        self.picky[slot] = bool(ids)
        if ids and self.allowed is None:
            self.allowed = np.ones((self.count, self._vocabulary), dtype=np.bool_)
        if self.allowed is not None:
            self.allowed[slot] = not ids
            self.allowed[slot, list(ids)] = True

    def _widen(self, width: int, stops: int) -> None:
        have = self.tokens.shape[1]
        if width > have:
            more = max(width, 2 * have) - have
            self.tokens = np.pad(self.tokens, ((0, 0), (0, more)))
            self.logprobs = np.pad(self.logprobs, ((0, 0), (0, more)))
        if stops > self.stops.shape[1]:
            missing = stops - self.stops.shape[1]
            self.stops = np.pad(self.stops, ((0, 0), (0, missing)), constant_values=-1)

    def _swap(self, ones: Sequence[int], others: Sequence[int]) -> None:
        """Exchange pairs of slots with all that belongs to them; no slot is in two pairs."""
        pairs = [(one, other) for one, other in zip(ones, others, strict=True) if one != other]
        if not pairs:
            return
        here = np.array([*(one for one, _ in pairs), *(other for _, other in pairs)])
        there = np.roll(here, len(pairs))
        width = int(self.known[here].max())
        self._store.move(there, here, int(self.done[here].max()))
        self._rows[here] = self._rows[there]
        self.tokens[here, :width] = self.tokens[there, :width]
        self.logprobs[here, :width] = self.logprobs[there, :width]
        self.stops[here] = self.stops[there]
        if self.allowed is not None:
            self.allowed[here] = self.allowed[there]
        for one, other in pairs:
            self.turns[one], self.turns[other] = self.turns[other], self.turns[one]
            for slot in (one, other):
                turn = self.turns[slot]
                if turn is not None:
                    turn.slot = slot
