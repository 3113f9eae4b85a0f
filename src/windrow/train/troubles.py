"""What goes wrong in processes that work together, and which of them is to blame.

Promises: of several that complain, the one that most probably is the cause is told first: the others lost it. Errors of
ours stay what they are.
"""

from collections.abc import Sequence

from windrow import errors
from windrow.errors import TrainError, WindrowError
from windrow.isolation.host import Elsewhere
from windrow.train.messages import Raised
from windrow.types import Value


class Trouble(Value, frozen=True, kw_only=True):
    """What went wrong in one process."""

    rank: int
    died: bool
    kind: str
    """The class of what was raised; empty if nothing was."""
    why: str
    seen: str
    """A traceback, or what it said last."""


def raised(rank: int, said: Raised) -> Trouble:
    """A process has told what it raised."""
    ours = issubclass(_class_of(said.kind), WindrowError) and said.kind in vars(errors)
    why = said.why if ours else f"{said.kind}: {said.why}"
    return Trouble(rank=rank, died=False, kind=said.kind, why=why, seen=said.trace)


def overdue(rank: int, timeout_s: float, seen: str) -> Trouble:
    """A process has not answered; `seen` is where it is."""
    why = f"it has not answered after {timeout_s:g} s; raise train.timeout_s if it needs longer"
    return Trouble(rank=rank, died=False, kind="", why=why, seen=seen)


def told(troubles: Sequence[Trouble], size: int, what: str) -> WindrowError:
    """All of it in one error, caused by what all of them said; `what` is what they were asked for."""
    first = min(troubles, key=_rank_of_cause)
    error = _class_of(first.kind)(f"trainer process {first.rank} of {size}, {what}: {first.why}")
    error.__cause__ = Elsewhere("\n".join(f"process {each.rank}: {each.why}\n{each.seen}" for each in troubles))
    return error


def _rank_of_cause(trouble: Trouble) -> tuple[bool, bool]:
    """A death comes before what was raised; the complaint of one that lost the others before neither."""
    return (not trouble.died, trouble.kind in {"RuntimeError", "DistBackendError", "DistNetworkError"})


def _class_of(kind: str) -> type[WindrowError]:
    found = vars(errors).get(kind)
    return found if isinstance(found, type) and issubclass(found, WindrowError) else TrainError
