"""Who used which device when."""

from hypothesis import given
from hypothesis import strategies as st
from tests.rollout.given_trajectories import trajectory

from windrow.pipelines.timeline import STEPS, Span, Timeline, merged, without
from windrow.types import but

intervals = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)).map(lambda pair: (pair[0], pair[0] + pair[1])))


@given(intervals, intervals)
def test_times_are_counted_once_and_holes_are_holes(busy: list[tuple[int, int]], holes: list[tuple[int, int]]):
    seconds = {second for begin, end in busy for second in range(begin, end)}
    gone = {second for begin, end in holes for second in range(begin, end)}
    left = [*without(merged(busy), holes)]
    found = [second for begin, end in left for second in range(int(begin), int(end))]
    assert sorted(found) == sorted(seconds - gone)


def played(engine: str, begin: float, end: float):
    return but(trajectory(), engines=(engine,), began_at=begin, ended_at=end)


def test_an_engine_that_was_lent_is_not_playing_meanwhile():
    line = Timeline(lent=["engine-0"])
    line.batch([played("engine-0", 0.0, 10.0), played("engine-1", 0.0, 10.0)])
    line.note("lent", 4.0, 6.0)
    line.note("training", 4.0, 6.0)
    assert line.spans() == [
        Span("engine-0", "playing", 0.0, 4.0),
        Span("engine-0", "lent", 4.0, 6.0),
        Span("engine-0", "playing", 6.0, 10.0),
        Span("engine-1", "playing", 0.0, 10.0),
        Span("training", "training", 4.0, 6.0),
    ]


def test_what_is_old_is_forgotten():
    line = Timeline(lent=[])
    for step in range(3 * STEPS):
        line.batch([played("engine-0", 2.0 * step, 2.0 * step + 1)])
    assert len(line.spans()) == STEPS
