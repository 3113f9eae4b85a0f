"""Who used which device when."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.engines.torch.spells import PAUSE_S, Activity, Busy, Spells, busy_share
from windrow.pipelines.timeline import STEPS, Span, Timeline, collisions, merged

intervals = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)).map(lambda pair: (pair[0], pair[0] + pair[1])))


@given(intervals)
def test_times_are_counted_once(busy: list[tuple[int, int]]):
    seconds = {second for begin, end in busy for second in range(begin, end)}
    found = [second for begin, end in merged(busy) for second in range(int(begin), int(end))]
    assert found == sorted(seconds)


def worked(*spells: tuple[float, float], now: float = 20.0) -> Activity:
    return Activity(now=now, forwards=0, tokens=0, spells=spells)


def test_an_engine_is_busy_when_it_says_so_even_while_its_device_is_lent():
    line = Timeline(lent=["engine-0"])
    line.note("lent", 4.0, 6.0)
    line.note("training", 4.0, 6.0)
    line.look({"engine-0": worked((0.0, 4.0), (5.0, 10.0)), "engine-1": worked((0.0, 10.0))}, 20.0, 20.0)
    assert line.spans() == [
        Span("engine-0", "playing", 0.0, 4.0),
        Span("engine-0", "lent", 4.0, 6.0),
        Span("engine-0", "playing", 5.0, 10.0),
        Span("engine-1", "playing", 0.0, 10.0),
        Span("training", "training", 4.0, 6.0),
    ]
    assert collisions(line.spans()) == [
        (Span("engine-0", "lent", 4.0, 6.0), Span("engine-0", "playing", 5.0, 10.0)),
    ]


def test_what_is_told_twice_counts_once_and_a_clock_elsewhere_is_read_as_ours():
    line = Timeline(lent=[])
    line.look({"engine-0": worked((1008.0, 1009.0), now=1010.0)}, 9.0, 11.0)
    line.look({"engine-0": worked((1008.0, 1012.0), (1015.0, 1016.0), now=1020.0)}, 19.0, 21.0)
    assert [(span.begin, span.end) for span in line.spans()] == [(8.0, 12.0), (15.0, 16.0)]


def test_what_is_old_is_forgotten():
    line = Timeline(lent=[])
    for step in range(3 * STEPS):
        line.look(
            {"engine-0": worked((2.0 * step, 2.0 * step + 1), now=2.0 * step + 1)}, 2.0 * step + 1, 2.0 * step + 1
        )
    assert len(line.spans()) == STEPS


def test_a_spell_ends_with_a_pause_or_at_the_gate():
    spells = Spells()
    spells.note(0.0, 1.0)
    spells.note(1.0 + PAUSE_S / 2, 2.0)
    spells.note(3.0, 4.0)
    spells.cut()
    spells.note(4.0, 5.0)
    assert spells.told() == ((0.0, 2.0), (3.0, 4.0), (4.0, 5.0))


def test_a_forward_counts_while_it_is_made_and_is_not_counted_twice(monkeypatch: pytest.MonkeyPatch):
    now = 0.5
    monkeypatch.setattr("windrow.engines.torch.spells.time", SimpleNamespace(monotonic=lambda: now))
    spells = Spells()
    assert spells.busy() == Busy(now=0.5, seconds=0.0)
    spells.begin(1.0)
    now = 3.0
    assert spells.busy() == Busy(now=3.0, seconds=2.0)
    spells.end(4.0)
    now = 9.0
    assert spells.busy() == Busy(now=9.0, seconds=3.0)
    assert spells.told() == ((1.0, 4.0),)


def test_engines_are_compared_with_their_own_clocks_and_those_that_say_nothing_do_not_count():
    before = {
        "here": Busy(now=10.0, seconds=5.0),
        "there": Busy(now=900.0, seconds=0.0),
        "lost": Busy(now=1, seconds=1),
    }
    after = before | {"here": Busy(now=14.0, seconds=9.0), "there": Busy(now=904.0, seconds=2.0)}
    assert busy_share(before, after) == 6 / 8
    assert busy_share({}, after) == busy_share(before, before) == 0.0
