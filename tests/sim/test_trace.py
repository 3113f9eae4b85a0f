"""Recorded episodes."""

from pathlib import Path

import pytest
from tests.sim.given import config

from windrow.errors import ConfigError
from windrow.sim.trace import RecordedEpisode, read_trace
from windrow.sim.workload import Workload


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_csv_and_a_jsonl_say_the_same(tmp_path: Path):
    rows = written(tmp_path, "t.csv", "task,seconds,turns,tokens\na,,2,30\nb,7.5,,\na,,1,5\n")
    lines = written(
        tmp_path,
        "t.jsonl",
        '{"task":"a","turns":2,"tokens":30}\n\n{"task":"b","seconds":7.5}\n{"task":"a","turns":1,"tokens":5}',
    )
    expected = [
        [RecordedEpisode(turns=2, tokens=30.0), RecordedEpisode(turns=1, tokens=5.0)],
        [RecordedEpisode(seconds=7.5)],
    ]
    assert read_trace(rows) == expected == read_trace(lines)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.csv", "task,seconds\na,fast\n", "t.csv:2: seconds must be a number, got 'fast'"),
        ("t.csv", "task,seconds\na,1\nb,-3\n", "t.csv:3: seconds must be 0 or more, got -3"),
        ("t.csv", "task,seconds\na,inf\n", "t.csv:2: seconds must be 0 or more, got inf"),
        ("t.csv", "task,second\na,1\n", "t.csv:1: unknown column 'second'; a trace has task, seconds, turns, tokens"),
        ("t.csv", "task,seconds\n,1\n", "t.csv:2: task is missing"),
        ("t.csv", "task,seconds\na,1,2\n", "t.csv:2: more values than columns"),
        ("t.csv", "task,turns\na,1\n", "t.csv:2: needs seconds, or turns and tokens"),
        ("t.csv", "task,turns,tokens\na,1.5,9\n", "t.csv:2: turns must be a whole number of 1 or more, got 1.5"),
        ("t.csv", "task,seconds\n", "t.csv: no episodes"),
        ("t.csv", "", "t.csv: no episodes"),
        ("t.jsonl", '{"task":"a","seconds":1}\n[1]\n', "t.jsonl:2: not an object of names and numbers"),
        ("t.jsonl", '{"task":"a","length":1}\n', "t.jsonl:1: unknown key 'length'"),
        ("t.txt", "", "episode.path must end in .csv or .jsonl, got "),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, name: str, text: str, message: str):
    with pytest.raises(ConfigError) as error:
        read_trace(written(tmp_path, name, text))
    assert message in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"does not exist: .*gone\.csv"):
        read_trace(tmp_path / "gone.csv")


def test_what_is_no_text_is_refused(tmp_path: Path):
    (tmp_path / "t.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_trace(tmp_path / "t.csv")


def test_a_path_is_taken_from_the_folder_of_the_config(tmp_path: Path):
    written(tmp_path, "t.csv", "task,seconds\na,4\n")
    made = config(episode={"kind": "trace", "path": "t.csv"}).located(tmp_path)
    assert Workload(made, 0).plan(0, 0).seconds == 4.0
    assert config().located(tmp_path) == config()


def test_siblings_replay_the_different_episodes_of_their_task(tmp_path: Path):
    rows = "".join(f"{task},{task * 10 + number}\n" for task in range(3) for number in range(4))
    path = written(tmp_path, "t.csv", "task,seconds\n" + rows)
    workload = Workload(config(episode={"kind": "trace", "path": str(path)}), 0)
    for ordinal in (0, 1, 2, 3, 301):
        drawn = {workload.plan(ordinal, seat).seconds for seat in range(4)}
        assert drawn == {ordinal % 3 * 10 + number for number in range(4)}


def test_recorded_tokens_are_spread_over_the_turns(tmp_path: Path):
    path = written(tmp_path, "t.csv", "task,turns,tokens\na,4,100\n")
    plan = Workload(config(episode={"kind": "trace", "path": str(path)}), 0).plan(0, 0)
    assert (plan.turns, plan.scale) == (4, 25.0)
    assert plan.length == pytest.approx(100.0)
