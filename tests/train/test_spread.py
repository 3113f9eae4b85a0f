"""Those who sit on different devices work at the same time, the others in turn, and all have ended in the end."""

import threading
from collections.abc import Callable

import pytest

from windrow.cluster.mapping import Member
from windrow.train.spread import at_once

PATIENCE_S = 30.0
APART: list[tuple[Member, ...]] = [("actor",), ("reference",), ("critic",)]


def test_lanes_work_at_the_same_time_the_first_of_them_in_this_thread():
    met = threading.Barrier(2, timeout=PATIENCE_S)

    def work() -> threading.Thread:
        met.wait()
        return threading.current_thread()

    done = at_once({"reference": work, "critic": work}, APART)
    assert done["reference"] is threading.current_thread()
    assert done["critic"] is not threading.current_thread()


def test_those_of_one_lane_work_one_after_the_other():
    seen: list[str] = []

    def noting(name: str) -> Callable[[], None]:
        def work() -> None:
            seen.append(f"{name} begins")
            seen.append(f"{name} ends")

        return work

    work: dict[Member, Callable[[], None]] = {"critic": noting("critic"), "actor": noting("actor")}
    at_once(work, [("actor", "reference", "critic")])
    assert seen == ["actor begins", "actor ends", "critic begins", "critic ends"]


@pytest.mark.parametrize("fails", ["actor", "critic"])
def test_what_one_raises_is_raised_when_the_other_has_ended(fails: Member):
    begun, ended = threading.Event(), threading.Event()

    def fail() -> None:
        assert begun.wait(PATIENCE_S)
        raise ValueError(f"the {fails} is ill")

    def work() -> None:
        begun.set()
        ended.set()

    other: Member = "critic" if fails == "actor" else "actor"
    with pytest.raises(ValueError, match=f"the {fails} is ill"):
        at_once({fails: fail, other: work}, APART)
    assert ended.is_set()


def test_nothing_to_do_is_nothing():
    assert at_once({}, APART) == {}
