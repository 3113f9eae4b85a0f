"""Settings are checked when they are made; what follows from them is arithmetic."""

import pytest

from windrow.core.machine import Machine
from windrow.core.settings import VALIDATION, ModeSettings, Settings, nearest_sizes
from windrow.core.staleness import admission_cap, hard_lag, must_take
from windrow.errors import ConfigError
from windrow.types import from_json


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"group_size": 8, "batch_size": 20}, r"multiple of group_size \(8\), got 20; nearest: 16 or 24"),
        ({"group_size": 8, "batch_size": 4}, r"got 4; nearest: 8"),
        ({"tail": 0.5, "staleness": 1.0}, "tail needs staleness 0 and no spares"),
        ({"tail": 0.5, "spares": 1}, "tail needs staleness 0 and no spares"),
        ({"filter": "varied", "group_size": 1}, "filter varied needs a group_size of 2 or more, got 1"),
        ({"on_stale": "drop"}, "on_stale drop needs staleness of 1 or more, got "),
        ({"on_stale": "drop", "staleness": 0.5}, "on_stale drop needs staleness of 1 or more, got "),
    ],
)
def test_settings_that_cannot_work_are_refused(wrong, message):
    with pytest.raises(ConfigError, match=message):
        ModeSettings(**wrong)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"train":{"group_size":0}}', "train.group_size"),
        ('{"train":{"spares":-1}}', "train.spares"),
        ('{"train":{"staleness":-0.5}}', "train.staleness"),
        ('{"train":{"on_stale":"hope"}}', "train.on_stale"),
        ('{"train":{"tail":1.5}}', "train.tail"),
        ('{"train":{"tags":{"maze":0}}}', "train.tags"),
        ('{"lease_s":0}', "lease_s"),
        ('{"breaker_share":2}', "breaker_share"),
        ('{"polcy":1}', "polcy"),
    ],
)
def test_settings_out_of_range_are_refused_when_they_are_read(text, message):
    with pytest.raises(ValueError, match=message):
        from_json(text, Settings)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Settings(lease_s=-1.0), "settings: .*lease_s"),
        (Settings(train=ModeSettings(spares=-1)), "settings: .*train.spares"),
        (Settings(breaker_share=2.0), "settings: .*breaker_share"),
    ],
)
def test_settings_made_in_python_are_checked_by_the_machine(wrong, message):
    with pytest.raises(ConfigError, match=message):
        Machine(wrong)


def test_whole_numbers_are_as_good_as_fractions():
    whole = Machine(Settings(train=ModeSettings(staleness=1), lease_s=60))
    assert whole.snapshot() == Machine(Settings(train=ModeSettings(staleness=1.0), lease_s=60.0)).snapshot()


@pytest.mark.parametrize(("n", "near"), [(0, "4"), (3, "4"), (5, "4 or 8"), (8, "8 or 12")])
def test_the_nearest_sizes(n, near):
    assert nearest_sizes(n, 4) == near


def test_what_happens_to_old_episodes_follows_from_the_bound():
    assert ModeSettings().stale_policy == "wait"
    assert ModeSettings(staleness=0.5).stale_policy == "keep"
    assert ModeSettings(staleness=1.0, on_stale="wait").stale_policy == "wait"


def test_validation_is_never_too_old():
    assert Settings().of("val") == VALIDATION
    assert hard_lag(VALIDATION) is None


def test_without_tags_there_is_one_without_a_name():
    assert ModeSettings().shares == {"": 1.0}
    assert ModeSettings(tags={"maze": 2.0}).shares == {"maze": 2.0}


@pytest.mark.parametrize(("staleness", "on_stale", "lag"), [(1.0, "wait", 1), (1.9, "drop", 1), (3.0, "keep", None)])
def test_a_hard_bound_counts_whole_versions(staleness, on_stale, lag):
    assert hard_lag(ModeSettings(staleness=staleness, on_stale=on_stale)) == lag


def test_at_least_one_batch_may_live():
    assert admission_cap(ModeSettings(), 7) == 7


@pytest.mark.parametrize(
    ("living", "lag", "later", "wanted", "demands"),
    [
        ({6: 32, 7: 32}, 1, 0, 32, [(6, 32), (7, 32)]),  # the worked example: all 32 of version 6
        ({6: 32, 7: 32}, 2, 0, 32, []),  # with bound 2 any 32 of the 64
        ({6: 64}, 2, 0, 32, [(6, 32)]),
        ({6: 33, 7: 31}, 2, 0, 32, [(6, 1)]),  # at most 32 of version 6 and older may remain
        ({6: 32, 7: 32}, 1, 16, 16, [(6, 16), (7, 16)]),  # half a batch now, the other half later
        ({7: 32}, 1, 0, 32, []),  # nothing is forced: a whole version is left for them
        ({7: 32}, 0, 0, 32, [(7, 32)]),  # synchronous: all of them, now
        ({}, 1, 0, 32, []),
        ({6: 16}, 1, 16, 16, []),
    ],
)
def test_a_batch_must_take_what_would_be_forced_over_the_bound(living, lag, later, wanted, demands):
    assert must_take(living, version=7, lag=lag, batch_groups=32, later=later, wanted=wanted) == demands
