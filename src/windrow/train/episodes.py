"""A batch seen as trajectories, whichever rows they stand in.

Shapes: B rows and L places as in the batch; N trajectories, T turns, S sampled tokens of the longest trajectory.

A trajectory may give several rows: one per turn, or one per chain after its history was rewritten. What it was worth is
known once, and its turns follow each other over rows. So estimators see trajectories: `Episodes` has one entry for
each, and `Line` has the sampled tokens of each, one after the other, without what stands between them.

Promises: a trajectory counts once, however many rows it has and even if a row is there twice. Nothing here computes an
advantage.
"""

import torch
from torch import Tensor

from windrow.errors import DataError
from windrow.types import Value


class Episodes(Value, frozen=True, gc=True):
    """Which rows belong together."""

    owners: Tensor
    """(B,) which trajectory a row is of, counted from 0 in the order of their ids."""
    first: Tensor
    """(N,) the first row of each trajectory."""
    scores: Tensor
    """(N,)"""
    groups: Tensor
    """(N,)"""

    @staticmethod
    def of(traj_id: Tensor, groups: Tensor, scores: Tensor) -> "Episodes":
        """From ids (B,), groups (B,) and scores (B, L), whose sum over a row is the score of its trajectory.

        A row without a single token has no place for a score, so rows without one do not contradict the others.
        """
        ids, owners = torch.unique(traj_id, return_inverse=True)
        rows = torch.arange(len(traj_id), device=traj_id.device)
        first = rows.new_zeros(len(ids)).scatter_reduce(0, owners, rows, "amin", include_self=False)
        return Episodes(owners, first, _agreed(scores.float().sum(dim=1), owners, ids), groups[first])


class Line(Value, frozen=True, gc=True):
    """The sampled tokens of each trajectory, in the order in which they were sampled."""

    turn_ids: Tensor
    """(N, S), -1 where the trajectory has no more tokens."""
    rows: Tensor
    places: Tensor
    """(K,) each: where a sampled token stands in the batch,"""
    owners: Tensor
    steps: Tensor
    """(K,) each: and where in the line."""

    @staticmethod
    def of(episodes: Episodes, response_mask: Tensor, turn_ids: Tensor) -> "Line":
        rows, places = response_mask.nonzero(as_tuple=True)
        turns = turn_ids[rows, places].long()
        if turns.numel() and int(turns.min()) < 0:
            raise DataError("some sampled tokens have no turn in turn_ids; every token in response_mask needs one")
        owners = episodes.owners[rows]
        deepest = int(turns.max()) + 1 if turns.numel() else 1
        longest = response_mask.shape[1]
        keys, which = torch.unique((owners * deepest + turns) * longest + places, return_inverse=True)
        owner_of = keys // (deepest * longest)
        step_of = _count_within(owner_of)
        width = int(step_of.max()) + 1 if step_of.numel() else 0
        line = turns.new_full((len(episodes.first), width), -1)
        line[owner_of, step_of] = keys // longest % deepest
        return Line(line, rows, places, owner_of[which], step_of[which])

    @property
    def mask(self) -> Tensor:
        """(N, S) where there is a token."""
        return self.turn_ids >= 0

    def gathered(self, column: Tensor) -> Tensor:
        """A column of the batch (B, L) in the order of the line, (N, S), 0 where there is no token."""
        made = column.new_zeros(self.turn_ids.shape)
        made[self.owners, self.steps] = column[self.rows, self.places]
        return made

    def spread(self, line: Tensor, like: Tensor) -> Tensor:
        """What stands in the line (N, S), back in the places of the batch (B, L), 0 where nothing was sampled."""
        made = line.new_zeros(like.shape)
        made[self.rows, self.places] = line[self.owners, self.steps]
        return made

    def of_turns(self, turns: Tensor) -> Tensor:
        """What is said of turns (N, T) for each of their tokens, (N, S)."""
        self.check_turns(turns.shape[1])
        return torch.where(self.mask, turns.gather(1, self.turn_ids.clamp(min=0)), 0.0)

    def summed(self, line: Tensor, turns: int) -> Tensor:
        """What stands in the line summed over the tokens of each turn, (N, T)."""
        self.check_turns(turns)
        made = line.new_zeros(len(line), turns)
        return made.scatter_add(1, self.turn_ids.clamp(min=0), torch.where(self.mask, line, 0.0))

    def at_turn_ends(self, rewards: Tensor, discount: float) -> Tensor:
        """What turns earned (N, T) on the last token of each, (N, S).

        A turn without tokens (cut off, or an empty response) hands what it earned to the turn before it, a discount
        for each turn between; before the first turn that has tokens there is nobody to hand it to.
        """
        counts = self.summed(self.mask.float(), rewards.shape[1])
        earned = torch.zeros_like(rewards)
        carried = rewards.new_zeros(len(rewards))
        for turn in reversed(range(rewards.shape[1])):
            carried = rewards[:, turn] + discount * carried
            here = counts[:, turn] > 0
            earned[:, turn] = torch.where(here, carried, 0.0)
            carried = torch.where(here, 0.0, carried)
        after = torch.cat([self.turn_ids[:, 1:], self.turn_ids.new_full((len(self.turn_ids), 1), -1)], dim=1)
        return torch.where(after != self.turn_ids, self.of_turns(earned), 0.0)

    def check_turns(self, turns: int) -> None:
        last = int(self.turn_ids.max()) if self.turn_ids.numel() else -1
        if last >= turns:
            raise DataError(f"turn_ids name turn {last} but step_scores and turn_states have {turns} turns")


def _agreed(scores: Tensor, owners: Tensor, ids: Tensor) -> Tensor:
    """The score that all rows of a trajectory have, (N,)."""
    zero = scores.new_zeros(len(ids))
    highest = zero.scatter_reduce(0, owners, scores, "amax", include_self=False)
    lowest = zero.scatter_reduce(0, owners, scores, "amin", include_self=False)
    apart = (highest != lowest) & (highest != 0) & (lowest != 0)
    if not bool(torch.isfinite(highest - lowest).all()):
        raise DataError("scores must be finite; an episode without a score belongs into no batch")
    if bool(apart.any()):
        one = int(apart.nonzero()[0, 0])
        raise DataError(
            f"rows of trajectory {int(ids[one])} have scores {float(lowest[one]):g} and {float(highest[one]):g}; "
            "the sum over each of its rows must be the score of the trajectory"
        )
    return torch.where(highest.abs() >= lowest.abs(), highest, lowest)


def _count_within(owners: Tensor) -> Tensor:
    """0, 1, 2 … within each stretch of one owner."""
    places = torch.arange(len(owners), device=owners.device)
    begins = torch.ones_like(owners, dtype=torch.bool)
    begins[1:] = owners[1:] != owners[:-1]
    return places - torch.where(begins, places, 0).cummax(dim=0).values
