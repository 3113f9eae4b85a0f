"""The arithmetic of staleness, and nothing else.

Promises: with bound b and B groups in a batch, at most floor((b + 1) * B) groups are admitted and not yet trained on.
Then the mean lag of delivered groups is at most b: a living group grows older by one at each new version, at most
b * B of them live undelivered when a version is published (the other B were just trained), and B are delivered per
version. Under a hard bound `must_take` says how many old groups a batch has to contain so that none of those that
stay behind is forced over the bound; a hard bound counts whole versions, so 1.5 acts as 1 there.

Worked example: bound 1, B = 32, version 7 current. 32 groups of version 6 live and 32 of version 7. The batch at
version 7 must take all 32 of version 6, since at version 8 they would be 2 behind; at version 8 the next batch takes
those of version 7. With bound 2 the same batch may take any 32 of the 64 as long as those of versions 6 and older
that remain number 32 at most.
"""

from math import floor

from windrow.core.settings import ModeSettings


def admission_cap(settings: ModeSettings, batch_groups: int) -> int:
    """Groups that may be admitted and not yet trained on."""
    limit = hard_lag(settings)
    bound = settings.staleness if limit is None else limit
    return max(batch_groups, floor((bound + 1) * batch_groups + 1e-9))


def hard_lag(settings: ModeSettings) -> int | None:
    """The lag that no delivered group may exceed; None if old groups are kept."""
    return None if settings.stale_policy == "keep" else floor(settings.staleness)


def must_take(
    living: dict[int, int], *, version: int, lag: int, batch_groups: int, later: int, wanted: int
) -> list[tuple[int, int]]:
    """How many groups a batch of `wanted` groups has to take from the oldest: pairs (up to this version, at least).

    `living` counts begun and undelivered groups by version; `later` is how many more will be delivered at this
    version after this batch.
    """
    demands = []
    for ahead in range(-1, lag + 1):
        oldest = version + 1 + ahead - lag
        waiting = sum(count for born, count in living.items() if born <= oldest)
        need = min(waiting - (ahead + 1) * batch_groups - later, wanted)
        if need > 0:
            demands.append((oldest, need))
    return demands
