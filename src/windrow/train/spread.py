"""The roles of a run in several places: where the actor is, and in processes on devices of their own.

Promises: whoever asks a role does not see where it is. Those on different devices work at the same time, those who have
a device in common one after the other (`Layout.lanes`). Closing closes all of it.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TypeVar

from windrow.cluster.mapping import Member
from windrow.train.local import Roles
from windrow.train.team import Company

T = TypeVar("T")


class Spread:
    """An actor, and whoever sits elsewhere."""

    def __init__(self, home: Roles, companies: Sequence[Company]) -> None:
        everywhere: list[Roles | Company] = [home, *companies]
        self.actor = home.actor
        self.reference = next((place.reference for place in everywhere if place.reference is not None), None)
        self.critic = next((place.critic for place in everywhere if place.critic is not None), None)
        self.pack = home.pack
        self.weights = home.weights
        self._places = everywhere

    def close(self) -> None:
        with ExitStack() as closing:
            for place in self._places:
                closing.callback(place.close)


def at_once(work: Mapping[Member, Callable[[], T]], lanes: Sequence[tuple[Member, ...]]) -> dict[Member, T]:
    """Have everybody work, lanes at the same time; all have ended when it returns or raises.

    The first lane that has work is here, in this thread.
    """
    queues = [[name for name in lane if name in work] for lane in lanes]
    here, *others = [names for names in queues if names] or [[]]
    done: dict[Member, T] = {}
    with ThreadPoolExecutor(max(1, len(others)), thread_name_prefix="windrow-lane") as pool:
        waiting = [pool.submit(_one_by_one, work, names) for names in others]
        done |= _one_by_one(work, here)
        for each in waiting:
            done |= each.result()
    return done


def _one_by_one(work: Mapping[Member, Callable[[], T]], names: Sequence[Member]) -> dict[Member, T]:
    return {name: work[name]() for name in names}
