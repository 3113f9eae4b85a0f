"""Files that a crash or an editor left odd, and sources whose tags nobody knows beforehand."""

import asyncio
import logging
from pathlib import Path

import pytest
from tests.rollout.given_trajectories import trajectory
from tests.sources.kits import write_jsonl

from windrow.errors import ConfigError, DataError
from windrow.sources.jsonl import JsonlSource
from windrow.sources.mixtures import MixtureSource
from windrow.sources.recordings import HEADER, MAGIC, Recorder, Recording
from windrow.sources.replay import ReplaySource
from windrow.trajectory import Task
from windrow.types import but

RECORDS = 3


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "played.rec"
    with Recorder(path) as out:
        for number in range(RECORDS):
            made = but(trajectory(group=number), task=Task(ordinal=number, seed=number, tag="old", name=f"n{number}"))
            out.write(made)
    return path


def ends(data: bytes) -> list[int]:
    """Where each record ends."""
    found, at = [], len(MAGIC)
    while at < len(data):
        at += HEADER.size + HEADER.unpack(data[at : at + HEADER.size])[0]
        found.append(at)
    return found


# tags


@pytest.mark.parametrize("position", [{}, {"again:old": 1}])
def test_the_first_call_already_knows_the_tag_of_a_recording_in_a_mixture(recording: Path, position: dict[str, int]):
    source = MixtureSource({"again": ReplaySource(recording)})
    source.restore(position)
    (task,) = asyncio.run(source.next("again", 1))
    assert (task.tag, task.name) == ("again", f"again/n{position.get('again:old', 0)}")


def test_the_first_call_already_knows_the_tag_that_rows_say_in_a_mixture(tmp_path: Path):
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"kind": "algebra", "n": number} for number in range(3)])
    source = MixtureSource({"math": JsonlSource(rows, tag_field="kind")})
    tasks = asyncio.run(source.next("math", 2))
    assert [(task.tag, task.payload["n"]) for task in tasks] == [("math", 0), ("math", 1)]


# lines


@pytest.mark.parametrize("empty", [b"\x0c", b" \x0b ", b"\x1c", b"\r", b"\t"])
def test_a_line_of_space_is_empty_or_refused_when_it_is_looked_at(tmp_path: Path, empty: bytes):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"n": 1}\n' + empty + b'\n{"n": 2}\n')
    try:
        tasks = asyncio.run(JsonlSource(path).next("", 5))
    except ConfigError as error:
        assert "rows.jsonl:2 is no JSON object" in str(error)  # noqa: PT017 -- either will do
    else:
        assert [task.payload for task in tasks] == [{"n": 1}, {"n": 2}]


def test_a_flag_is_not_the_number_that_it_equals(tmp_path: Path):
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"right": 1}, {"right": True}])
    (task,) = asyncio.run(JsonlSource(rows, where={"right": True}).next("", 5))
    assert task.payload["right"] is True


# recordings


def test_a_page_that_was_lost_in_the_middle_is_damage_and_what_follows_is_kept(recording: Path):
    data = bytearray(recording.read_bytes())
    begin = ends(bytes(data))[0]
    data[begin : begin + HEADER.size] = bytes(HEADER.size)
    recording.write_bytes(data)
    with pytest.raises(DataError, match=f"damaged at byte {begin}"):
        [*Recording(recording)]
    with pytest.raises(DataError, match="damaged"):
        Recorder(recording)
    assert recording.read_bytes() == bytes(data)


def test_whatever_a_crash_left_as_zeros_is_left_out_and_written_over(recording: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.ERROR)
    data = recording.read_bytes()
    last = but(trajectory(group=9), task=Task(ordinal=9))
    for begin in range(len(MAGIC), len(data), 7):
        recording.write_bytes(data[:begin] + bytes(len(data) - begin))
        whole = sum(end <= begin for end in ends(data))
        assert len([*Recording(recording)]) in (whole, whole + 1)  # a record may end in zeros of its own
        with Recorder(recording) as out:
            out.write(last)
        assert [*Recording(recording)][-1].task.ordinal == 9
