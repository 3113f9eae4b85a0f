"""Trajectories in a file: exact, and safe against crashes."""

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.rollout.given_trajectories import trajectory
from tests.sources.kits import played

from windrow.errors import DataError
from windrow.sources.recordings import HEADER, MAGIC, Recorder, Recording, packed, unpacked
from windrow.text import Message
from windrow.trajectory import Chain, Segment, Task, Trajectory, Turn
from windrow.types import AttemptId, but


def full(**changes: object) -> Trajectory:
    """One with something in every field."""
    chain = Chain(
        token_ids=np.array([1, 2, 3, 2**31 - 1], np.int32),
        logprobs=np.array([0.0, -1e-30, -np.inf, np.nan], np.float32),
        segments=(Segment("prompt", 2), Segment("policy", 2, 7, stale_cache=True)),
    )
    turn = Turn(
        chain=0, begin=2, end=4, reward=0.1, finish="length", requests=3, generate_s=1.5, env_s=0.25,
        seen=(Message("user", "wie geht's? ✓"), Message("tool", "4", "add")), action="\x00…",
    )  # fmt: skip
    made = Trajectory(
        attempt=AttemptId(3, 1),
        seat=2,
        mode="val",
        task=Task(ordinal=2**40, seed=9, payload={"n": [1, None, {"x": 0.1}]}, tag="math", name="t", split="held_out"),
        chains=(chain, chain),
        turns=(turn,),
        score=float("nan"),
        ending="context",
        worker="w0",
        engines=("e0", "e1"),
        began_at=1.25,
        ended_at=2.5,
        reward_began_at=3.0,
        reward_ended_at=4.0,
        scores={"format": 0.5, "math": -0.0},
        info={"won": True, "grid": np.arange(6, dtype=np.uint8).reshape(2, 3)},
    )  # fmt: skip
    return but(made, **changes)


def same(one: Any, other: Any) -> bool:
    """Equal to the last bit, types included; NaN is equal to NaN."""
    if isinstance(one, np.ndarray):
        return (
            isinstance(other, np.ndarray)
            and (one.dtype, one.shape) == (other.dtype, other.shape)
            and one.tobytes() == other.tobytes()
        )
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return one.hex() == float(other).hex()
    if isinstance(one, dict):
        return [*one] == [*other] and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Trajectory | Task | Chain | Segment | Turn | Message | AttemptId):
        return all(same(getattr(one, name), getattr(other, name)) for name in one.__struct_fields__)
    return bool(one == other)


def test_what_is_read_back_is_what_was_written():
    made = full()
    assert same(unpacked(packed(made)), made)
    assert not same(unpacked(packed(made)), but(made, seat=3))


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(-9, 9), inner, max_size=3),
    max_leaves=8,
)


@given(payload=PLAIN, info=st.dictionaries(st.text(), PLAIN, max_size=3))
def test_any_payload_and_info_comes_back(payload: object, info: dict[str, object]):
    made = full(task=Task(ordinal=0, payload=payload), info=info)
    assert same(unpacked(packed(made)), made)


DTYPES = st.sampled_from([np.dtype(name) for name in ("int32", "float32", "float64", "bool", "U3", "S2")])


@given(hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0)))
def test_any_array_comes_back_and_can_be_written_to(array: np.ndarray[Any, Any]):
    found = unpacked(packed(full(info={"array": array}))).info["array"]
    assert same(found, array)
    assert found.flags.writeable


def test_tuples_come_back_as_lists_and_scalars_of_numpy_as_numbers():
    info = unpacked(packed(full(info={"t": (1, 2), "s": np.float32(0.5), "b": np.bool_(1)}))).info
    assert same(info, {"t": [1, 2], "s": 0.5, "b": True})


@pytest.mark.parametrize("odd", [object(), 2**70, np.array([None]), "\ud800"])
def test_what_cannot_be_recorded_is_refused_by_name(odd: object):
    with pytest.raises(DataError, match=r"trajectory g3.a1 cannot be recorded: "):
        packed(full(info={"odd": odd}))


@pytest.mark.parametrize("data", [b"", b"\xc1", packed(full())[:-3], b"\x80", b"\x01"])
def test_what_is_no_record_is_refused(data: bytes):
    with pytest.raises(DataError, match="a record is no trajectory"):
        unpacked(data)


# files


def record(path: Path, made: list[Trajectory]) -> Path:
    with Recorder(path) as out:
        for one in made:
            out.write(one)
    return path


def groups(recording: Recording) -> list[int]:
    return [made.attempt.group for made in recording]


def some(count: int, begin: int = 0) -> list[Trajectory]:
    return [trajectory(group=number) for number in range(begin, begin + count)]


def test_a_file_is_read_in_the_order_in_which_it_was_written(tmp_path: Path):
    path = record(tmp_path / "new" / "run.rec", [full(), *played()])
    assert all(map(same, Recording(path), [full(), *played()]))
    assert Recording(path).torn_bytes == 0


def test_a_file_is_written_on(tmp_path: Path):
    path = record(tmp_path / "run.rec", some(2))
    record(path, some(2, begin=2))
    assert groups(Recording(path)) == [0, 1, 2, 3]


def test_what_was_written_can_be_read_before_the_file_is_closed(tmp_path: Path):
    with Recorder(tmp_path / "run.rec") as out:
        for count in range(3):
            assert len([*Recording(out.path)]) == count
            out.write(full())


def test_only_one_may_write(tmp_path: Path):
    with Recorder(tmp_path / "run.rec"), pytest.raises(DataError, match=r"run.rec is being written already"):
        Recorder(tmp_path / "run.rec")
    Recorder(tmp_path / "run.rec").close()


def test_wherever_a_write_is_cut_off_the_records_before_it_remain(tmp_path: Path):
    path = record(tmp_path / "run.rec", some(2))
    whole = path.read_bytes()
    second = len(whole) - (len(whole) - len(MAGIC)) // 2
    for length in [*range(len(MAGIC), len(whole), 5), second - 1, second, second + 1, len(whole)]:
        path.write_bytes(whole[:length])
        recording = Recording(path)
        complete = (length - len(MAGIC)) // (second - len(MAGIC))
        assert groups(recording) == [*range(complete)]
        assert recording.torn_bytes == length - [len(MAGIC), second, len(whole)][complete]


@pytest.mark.parametrize("left", [1, HEADER.size, HEADER.size + 30])
def test_whoever_writes_on_removes_what_was_cut_off(left: int, tmp_path: Path):
    path = record(tmp_path / "run.rec", some(1))
    whole = path.stat().st_size
    record(path, some(1, begin=1))
    path.write_bytes(path.read_bytes()[: whole + left])
    record(path, some(2, begin=5))
    recording = Recording(path)
    assert groups(recording) == [0, 5, 6]
    assert recording.torn_bytes == 0


def test_a_full_disk_leaves_whole_records(tmp_path: Path):
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Recorder(tmp_path / "run.rec") as out:
        out.write(trajectory(group=0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (out.path.stat().st_size + 100, usual[1]))
        try:
            with pytest.raises(DataError, match=r"run.rec cannot be written: File too large"):
                out.write(trajectory(group=1))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, usual)
        out.write(trajectory(group=2))
    assert groups(Recording(tmp_path / "run.rec")) == [0, 2]


def test_zeros_at_the_end_are_what_a_crash_leaves(tmp_path: Path):
    path = record(tmp_path / "run.rec", some(2))
    path.write_bytes(path.read_bytes() + bytes(100))
    recording = Recording(path)
    assert groups(recording) == [0, 1]
    assert recording.torn_bytes == 100


def test_whatever_a_crash_leaves_as_zeros_up_to_the_end_was_cut_off(tmp_path: Path):
    path = record(tmp_path / "run.rec", some(3))
    whole = path.read_bytes()
    begins = [begin for begin, _ in Recording(path).heads()]
    ends = [*begins[1:], len(whole)]
    for begin in range(len(MAGIC), len(whole), 3):
        content = whole[:begin] + bytes(len(whole) - begin)
        path.write_bytes(content)
        left = [end for end in ends if content[:end] == whole[:end]]
        recording = Recording(path)
        assert groups(recording) == [*range(len(left))]
        assert recording.torn_bytes == len(whole) - (left[-1] if left else len(MAGIC))


@pytest.mark.parametrize("length", [HEADER.size, 200])
def test_zeros_before_the_end_are_damage_and_nothing_is_removed(length: int, tmp_path: Path):
    path = record(tmp_path / "run.rec", some(4))
    _, (second, _), *_ = Recording(path).heads()
    content = bytearray(path.read_bytes())
    content[second : second + length] = bytes(length)
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"is damaged at byte {second}"):
        groups(Recording(path))
    with pytest.raises(DataError, match=rf"is damaged at byte {second}"):
        Recorder(path)
    assert path.read_bytes() == content


def test_what_is_neither_a_record_nor_zeros_is_damage_at_the_end_too(tmp_path: Path):
    path = record(tmp_path / "run.rec", some(1))
    path.write_bytes(path.read_bytes() + b"something else" + bytes(50) + b"!")
    with pytest.raises(DataError, match="is damaged at byte"):
        Recorder(path)


def test_a_last_record_with_a_wrong_checksum_was_cut_off(tmp_path: Path):
    path = record(tmp_path / "run.rec", some(2))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert groups(Recording(path)) == [0]


@pytest.mark.parametrize("at", [0, 5, 9, HEADER.size + 4])
def test_damage_before_the_end_is_an_error_and_not_a_shorter_file(at: int, tmp_path: Path):
    path = record(tmp_path / "run.rec", some(3))
    content = bytearray(path.read_bytes())
    content[len(MAGIC) + at] ^= 0x40
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"run.rec is damaged at byte 8; what stands before it can be read"):
        groups(Recording(path))


@pytest.mark.parametrize("make", [Recorder, lambda path: groups(Recording(path))])
@pytest.mark.parametrize("content", [b"hello", b"something else entirely", b"windrow\x02" + bytes(50)])
def test_a_file_that_is_something_else_is_left_alone(make: Callable[[Path], object], content: bytes, tmp_path: Path):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"notes.txt is no recording of trajectories"):
        make(path)
    assert path.read_bytes() == content


def test_a_file_that_was_cut_off_in_its_first_bytes_is_begun_again(tmp_path: Path):
    path = tmp_path / "run.rec"
    path.write_bytes(MAGIC[:3])
    assert groups(Recording(record(path, some(1)))) == [0]


def test_a_recording_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(DataError, match=r"there is no recording .*nowhere.rec"):
        Recording(tmp_path / "nowhere.rec")


def test_heads_are_read_without_tokens(tmp_path: Path):
    path = record(tmp_path / "run.rec", [full(), *some(1)])
    (first, head), (second, _) = Recording(path).heads()
    assert (head.attempt, head.mode, head.ending) == (AttemptId(3, 1), "val", "context")
    assert same([head.task], Recording(path).tasks([first]))
    assert [task.ordinal for task in Recording(path).tasks([second, first])] == [0, 2**40]
