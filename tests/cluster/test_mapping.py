"""Device mappings: every form that people write, and whatever else is refused without being evaluated."""

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.cluster.mapping import LARGEST_DEVICE, Layout, on_this_machine, parse_devices, spelled
from windrow.errors import ConfigError

DEVICES = st.lists(st.integers(0, 40), min_size=1, max_size=20, unique=True)


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("0", (0,)),
        (3, (3,)),
        ("0-3", (0, 1, 2, 3)),
        (" 0 - 3 , 6 ", (0, 1, 2, 3, 6)),
        ("6,0-1", (6, 0, 1)),
        ("range(4)", (0, 1, 2, 3)),
        ("range(0, 4)", (0, 1, 2, 3)),
        ("range(0, 8, 2)", (0, 2, 4, 6)),
        ("range(3, -1, -1)", (3, 2, 1, 0)),
        ("list(range(0, 8))", (0, 1, 2, 3, 4, 5, 6, 7)),
        ("list(range(0, 4)) + [6, 7]", (0, 1, 2, 3, 6, 7)),
        ("[0] + ([1] + list(range(2, 4)))", (0, 1, 2, 3)),
        ("[0, 1]", (0, 1)),
        ("(0, 1)", (0, 1)),
        ([2, 0], (2, 0)),
        ((5,), (5,)),
    ],
)
def test_every_form_that_people_write(text: str | list[int], devices: tuple[int, ...]):
    assert parse_devices(text) == devices


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "names no device"),
        ("[]", "names no device"),
        ("range(0)", "names no device"),
        ([], "names no device"),
        ("0,0", "names device 0 twice"),
        ("0-3,2", "names device 2 twice"),
        ([1, 1], "names device 1 twice"),
        ("3-0", "ends before it begins; write 0-3"),
        ("-1", "cannot be read at '-1'"),
        ("[-1]", "from 0 to"),
        ("range(-2, 2)", "from 0 to"),
        ([-1], "from 0 to"),
        ("0,,1", "cannot be read at ''"),
        ("range(0, 4, 0)", "step of a range"),
        ("range(10**12)", "a device is a number, got '10 \\*\\* 12'"),
        ("range(1000000000000)", "a range from 0 to 999999999999"),
        ("0-999999999", "a range from 0 to 999999999"),
        (f"range({'9' * 3000})", "from 0 to"),
        ([10**5000], "from 0 to"),
        (f"[{LARGEST_DEVICE + 1}]", f"from 0 to {LARGEST_DEVICE}"),
        ("[0]*10**9", "cannot hold"),
        ("[0] * 2", "cannot hold '\\[0\\] \\* 2'"),
        ("__import__('os')", "read, not evaluated, so it cannot hold .__import__"),
        ("list(__import__('os').environ)", "cannot hold"),
        ("list([i for i in range(4)])", "cannot hold"),
        ("range(x)", "a device is a number, got 'x'"),
        ("range()", "cannot hold"),
        ("range(0, 1, 2, 3)", "cannot hold"),
        ("range(*[1])", "a device is a number"),
        ("list(range(4), key=1)", "cannot hold"),
        ("[True]", "a device is a number, got 'True'"),
        ([True], "a device is a number, got True"),
        ([0.5], "a device is a number, got 0.5"),
        ("[1.5]", "a device is a number"),
        ("all", "cannot hold 'all'"),
        ("0..3", "cannot be read"),
        ("[0", "cannot be read"),
        ("\x00[0]", "cannot be read"),
        ("٣", "cannot be read"),
        ("(" * 1999 + ")" * 1999, "cannot be read"),
        ("-" * 3999 + "x", "cannot"),
        ("[0]+" * 900 + "[0]", "names device 0 twice"),
        ("0," * 5000, "has 10000 characters, at most 4000"),
    ],
)
def test_whatever_else_is_refused_by_name(text: str | list[int], says: str):
    with pytest.raises(ConfigError, match=says) as refusal:
        parse_devices(text, "roles.actor_train.device_mapping")
    assert str(refusal.value).startswith("roles.actor_train.device_mapping")
    assert len(str(refusal.value)) < 400


@given(DEVICES)
def test_a_short_spelling_is_read_back(devices: list[int]):
    assert parse_devices(spelled(devices)) == tuple(devices)


@given(DEVICES)
def test_a_python_list_is_read_as_it_is(devices: list[int]):
    assert parse_devices(repr(devices)) == parse_devices(devices) == tuple(devices)


@given(st.integers(-50, 50), st.integers(-50, 50), st.integers(-5, 5))
def test_a_range_is_what_python_makes_of_it_or_refused(start: int, stop: int, step: int):
    expected = [*range(start, stop, step)] if step else []
    if expected and min(expected) >= 0:
        assert parse_devices(f"list(range({start}, {stop}, {step}))") == tuple(expected)
    else:
        with pytest.raises(ConfigError):
            parse_devices(f"list(range({start}, {stop}, {step}))")


@given(st.text(alphabet="0123456789-+,*()[] .rangelistx_'", max_size=40) | st.text(max_size=40))
def test_any_text_is_a_mapping_or_a_refusal(text: str):
    try:
        devices = parse_devices(text)
    except ConfigError:
        return
    assert len(set(devices)) == len(devices) > 0
    assert all(0 <= device <= LARGEST_DEVICE for device in devices)


@pytest.mark.parametrize(
    ("infer", "train", "kind", "shared"),
    [
        ((0, 1), (), "disjoint", ()),
        ((0, 1), (2,), "disjoint", ()),
        ((0, 1), (1, 0), "colocated", (0, 1)),
        ((0, 1), (0, 1, 2), "colocated", (0, 1)),
        ((0, 1, 2), (1, 3), "overlapping", (1,)),
    ],
)
def test_two_mappings_make_a_layout(infer: tuple[int, ...], train: tuple[int, ...], kind: str, shared: tuple[int, ...]):
    layout = Layout(infer=infer, train=train)
    assert (layout.kind, layout.shared) == (kind, shared)


@pytest.mark.parametrize(
    ("train", "reference", "critic", "elsewhere", "lanes", "shared"),
    [
        ((0,), (), (), {}, ["arc"], (0,)),
        ((0,), (0,), (), {}, ["arc"], (0,)),
        ((0, 1), (1, 0), (), {}, ["arc"], (0, 1)),
        ((), (), (1,), {(1,): "c"}, ["ar", "c"], (1,)),
        ((2,), (), (3,), {(3,): "c"}, ["ar", "c"], ()),
        ((2,), (4,), (3,), {(4,): "r", (3,): "c"}, ["a", "r", "c"], ()),
        ((2,), (4, 3), (3, 4), {(3, 4): "rc"}, ["a", "rc"], ()),
        ((2,), (3, 4), (4, 5), {(3, 4): "r", (4, 5): "c"}, ["a", "rc"], ()),
        ((2, 3), (3, 4), (4,), {(3, 4): "r", (4,): "c"}, ["arc"], ()),
        ((2, 3), (4,), (3,), {(4,): "r", (3,): "c"}, ["ac", "r"], ()),
        ((2,), (1,), (0,), {(1,): "r", (0,): "c"}, ["a", "r", "c"], (0, 1)),
    ],
)
def test_those_who_share_a_device_take_turns_and_others_do_not(
    train: tuple[int, ...],
    reference: tuple[int, ...],
    critic: tuple[int, ...],
    elsewhere: dict[tuple[int, ...], str],
    lanes: list[str],
    shared: tuple[int, ...],
):
    """Roles by their first letters; generation has devices 0 and 1."""
    layout = Layout(infer=(0, 1), train=train, reference=reference, critic=critic)
    assert {own: "".join(name[0] for name in names) for own, names in layout.elsewhere.items()} == elsewhere
    assert ["".join(name[0] for name in lane) for lane in layout.lanes] == lanes
    assert layout.shared == shared


def test_a_layout_says_where_everybody_sits():
    away = Layout(infer=(0,), train=(1,), reference=(2, 3), critic=(2, 3))
    assert str(away) == "disjoint: generation on 0, training on 1, reference and critic on 2-3"
    assert str(Layout(infer=(0, 1, 2, 3), train=(2, 3))) == "overlapping: generation on 0-3, training on 2-3"
    assert str(Layout(infer=(0,), train=())) == "disjoint: generation on 0, training apart"
    assert Layout(infer=(0, 1, 4, 5), train=(), infer_each=2).engines == [(0, 1), (4, 5)]


@pytest.mark.parametrize(
    ("device", "mapped", "found"),
    [
        ("cuda", (2,), "cuda:2"),
        ("cuda", (2, 3), "cuda:2"),
        ("cuda", (), "cuda"),
        ("cuda:1", (2,), "cuda:1"),
        ("cpu", (2,), "cpu"),
    ],
)
def test_a_logical_device_is_the_gpu_of_its_number(device: str, mapped: tuple[int, ...], found: str):
    assert on_this_machine(device, mapped) == found


def test_every_trainer_has_devices_of_its_own():
    assert Layout(infer=(0,), train=(2, 3, 4, 5), train_each=2).trainers == [(2, 3), (4, 5)]
    assert Layout(infer=(0,), train=()).trainers == []


@pytest.mark.parametrize("text", ["[0x1for]", r"['\d']", "1if 1else 2"])
def test_what_is_odd_is_refused_without_a_warning_of_the_parser(text: str):
    with warnings.catch_warnings(record=True, action="always") as leaked, pytest.raises(ConfigError):
        parse_devices(text)
    assert leaked == []
