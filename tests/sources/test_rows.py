"""Tasks from the rows of tables: JSONL, Parquet and datasets in the same manner."""

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from datasets import Dataset, DatasetDict  # type: ignore[import-untyped]
from tests.sources.kits import ROWS, take, write_jsonl

from windrow.errors import ConfigError
from windrow.sources import parquet
from windrow.sources.huggingface import DatasetSource
from windrow.sources.jsonl import JsonlSource
from windrow.sources.parquet import ParquetSource
from windrow.sources.rows import RowSource
from windrow.trajectory import Split

Rows = list[dict[str, Any]]
Table = Callable[[Path, Rows], Callable[..., RowSource]]
"""Writes rows and says what opens them."""


def jsonl(folder: Path, rows: Rows) -> Callable[..., RowSource]:
    path = write_jsonl(folder / "t.jsonl", rows)
    return lambda **options: JsonlSource(path, **options)


def in_parquet(folder: Path, rows: Rows) -> Callable[..., RowSource]:
    pq.write_table(pa.Table.from_pylist(rows), folder / "t.parquet", row_group_size=3)
    return lambda **options: ParquetSource(folder / "t.parquet", **options)


def dataset(folder: Path, rows: Rows) -> Callable[..., RowSource]:
    made = Dataset.from_list(rows)
    return lambda **options: DatasetSource(made, **options)


every_table = pytest.mark.parametrize("table", [jsonl, in_parquet, dataset])


def questions(source: RowSource, tag: str = "") -> list[str]:
    return [task.payload["question"] for task in take(source, 999, tag)]


# what holds for all of them


@every_table
@pytest.mark.parametrize(("wanted", "count"), [(True, 1), (False, 2)])
def test_a_flag_is_no_number(wanted: bool, count: int, table: Table, tmp_path: Path):
    rows = [{"question": "a", "flag": True}, {"question": "b", "flag": False}, {"question": "c", "flag": False}]
    opened = table(tmp_path, rows)
    assert len(take(opened(where={"flag": wanted}), 9)) == count
    with pytest.raises(ConfigError, match=r"no row of .* is flag"):
        take(opened(where={"flag": int(wanted)}), 9)


@every_table
def test_a_row_is_the_payload_of_its_task(table: Table, tmp_path: Path):
    given = take(table(tmp_path, ROWS)(seed=40), 99)
    assert [task.payload for task in given] == ROWS
    assert [task.seed for task in given] == [*range(40, 55)]
    assert len({task.name for task in given}) == 15


@every_table
def test_fields_are_chosen_and_renamed(table: Table, tmp_path: Path):
    (task,) = take(table(tmp_path, ROWS)(fields={"prompt": "question", "gold": "answer"}), 1)
    assert task.payload == {"prompt": "0 + 1?", "gold": "1"}


@every_table
def test_one_column_may_be_taken_twice(table: Table, tmp_path: Path):
    (task,) = take(table(tmp_path, ROWS)(fields={"a": "answer", "b": "answer"}), 1)
    assert task.payload == {"a": "1", "b": "1"}


@every_table
def test_each_row_may_say_its_tag(table: Table, tmp_path: Path):
    source = table(tmp_path, ROWS)(tag_field="domain")
    math, code = take(source, 99, "math"), take(source, 99, "code")
    assert [task.payload for task in math] == ROWS[::2]
    assert [task.payload for task in code] == ROWS[1::2]
    assert {task.tag for task in code} == {"code"}
    assert len({task.ordinal for task in math + code}) == 15


@every_table
def test_only_rows_with_some_values_are_played(table: Table, tmp_path: Path):
    assert questions(table(tmp_path, ROWS)(where={"level": 2, "domain": "math"})) == ["10 + 1?", "12 + 1?", "14 + 1?"]


@every_table
def test_a_limit_is_on_the_rows_that_are_meant(table: Table, tmp_path: Path):
    opened = table(tmp_path, ROWS)
    assert questions(opened(limit=2)) == ["0 + 1?", "1 + 1?"]
    assert questions(opened(where={"domain": "code"}, limit=2)) == ["1 + 1?", "3 + 1?"]
    assert len(questions(opened(limit=2, passes=3))) == 6
    assert len(questions(opened(limit=99))) == 15


@every_table
def test_a_task_that_comes_again_keeps_its_name_and_not_its_ordinal(table: Table, tmp_path: Path):
    given = take(table(tmp_path, ROWS)(limit=3, passes=2, shuffle_seed=1), 6)
    assert {task.name for task in given[:3]} == {task.name for task in given[3:]}
    assert [task.ordinal for task in given] == [*range(6)]


@every_table
def test_what_is_held_out_is_never_trained_on_and_nothing_is_lost(table: Table, tmp_path: Path):
    rows = [{"question": f"{n}?"} for n in range(300)]
    opened = table(tmp_path, rows)
    parts: list[Split] = ["train", "held_out"]
    train, held_out = ({*questions(opened(held_out=0.2, split=part))} for part in parts)
    assert train.isdisjoint(held_out)
    assert len(train) + len(held_out) == 300
    assert 35 <= len(held_out) <= 85  # 60 expected, a standard deviation of 7
    assert all(task.split == "held_out" for task in take(opened(held_out=0.2, split="held_out"), 3))


def test_the_same_rows_are_held_out_in_every_format(tmp_path: Path):
    rows = [{"question": f"{n}?"} for n in range(60)]
    kept = [questions(table(tmp_path, rows)(held_out=0.3)) for table in (jsonl, in_parquet, dataset)]
    assert kept[0] == kept[1] == kept[2]


def test_a_row_that_appears_twice_is_on_one_side(tmp_path: Path):
    rows = [{"question": f"{n}?", "id": [n, copy]} for copy in range(2) for n in range(50)]
    opened = jsonl(tmp_path, rows)
    train = take(opened(held_out=0.5, fields={"question": "question"}), 999)
    assert len(train) == 2 * len({task.payload["question"] for task in train})


@every_table
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"passes": 0}, "passes over rows must be 1 or more, got 0"),
        ({"limit": 0}, "limit must be 1 or more, got 0"),
        ({"held_out": 1.0}, "held_out must be a share from 0 to below 1, got 1.0"),
        ({"held_out": -0.1}, "got -0.1"),
        ({"tag": "a", "tag_field": "domain"}, "tag 'a' and tag_field 'domain' contradict each other; give one"),
        ({"tag": "#a"}, "tag '#a' must not begin with #; call it 'a'"),
        ({"fields": {"q": "qestion"}}, r"has no (field|column) 'qestion'; did you mean question\?"),
        ({"where": {"lvl": 1}}, r"has no (field|column) 'lvl'; did you mean level\?"),
        ({"tag_field": "kind"}, r"has no (field|column) 'kind'; known are question, answer, domain, level"),
        ({"tag_field": "level"}, r"tag_field 'level' must hold text, got 0"),
        ({"where": {"level": 9}}, "no row of .* is level: 9"),
        (
            {"where": {"level": 2}, "held_out": 1e-9, "split": "held_out"},
            "is level: 2 and held_out with held_out 1e-09",
        ),
    ],
)
def test_what_cannot_be_played_is_refused(table: Table, options: dict[str, Any], why: str, tmp_path: Path):
    opened = table(tmp_path, ROWS)
    with pytest.raises(ConfigError, match=why):
        take(opened(**options), 1)


@every_table
def test_a_position_over_other_rows_is_refused(table: Table, tmp_path: Path):
    source = table(tmp_path, ROWS)()
    take(source, 3)
    other = table(tmp_path, [*ROWS[:-1], {**ROWS[-1], "answer": "another"}])()
    other.restore(source.position())
    with pytest.raises(ConfigError, match="is not what its position was taken over: #rows was"):
        take(other, 1)


@every_table
@pytest.mark.parametrize("options", [{"shuffle_seed": 2}, {"limit": 9}, {"where": {"level": 1}}, {"seed": 5}])
def test_a_position_in_another_order_is_refused(table: Table, options: dict[str, Any], tmp_path: Path):
    opened = table(tmp_path, ROWS)
    source, other = opened(shuffle_seed=1), opened(**{"shuffle_seed": 1, **options})
    take(source, 3)
    other.restore(source.position())
    with pytest.raises(ConfigError, match=r"#(order|rows) was"):
        take(other, 1)


@every_table
def test_more_passes_than_before_go_on_from_the_same_position(table: Table, tmp_path: Path):
    opened = table(tmp_path, ROWS)
    source, other = opened(shuffle_seed=1), opened(shuffle_seed=1, passes=2)
    take(source, 15)
    other.restore(source.position())
    assert [task.ordinal for task in take(other, 99)] == [*range(15, 30)]


def test_a_position_before_the_first_look_keeps_what_it_was_taken_over(tmp_path: Path):
    source = jsonl(tmp_path, ROWS)(tag_field="domain")
    take(source, 3, "math")
    other = jsonl(tmp_path, ROWS)(tag_field="domain")
    other.restore(source.position())
    assert other.position() == source.position()


def test_a_position_of_a_tag_that_is_gone_is_refused(tmp_path: Path):
    other = jsonl(tmp_path, ROWS)(tag_field="domain")
    other.restore({"maths": 3})
    with pytest.raises(ConfigError, match=r"has tag 'maths'; did you mean math\?"):
        take(other, 1, "math")


# lines


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


BAD_LINES: Iterable[tuple[bytes, str]] = [
    (b'{"a": 1}\n{"a": \n', r":2 is no JSON object: .*; it begins b'\{\"a\": "),
    (b'{"a": 1}\n[1, 2]\n', r":2 is no JSON object: Expected `object`, got `array`"),
    (b'{"a": 1}\n"text"\n', r":2 is no JSON object"),
    (b'{"a": 1}\n\n\n{"a": 1} {"a": 2}\n', r":4 is no JSON object: .*trailing"),
    (b'{"a": 1}\n{"b": 2}\n', r":2 has no field 'a'; known are b"),
    (b'{"a": "\xff"}\n', r":1 is no JSON object: .*[Uu]tf"),
    (b'{"a": 1}\n{"a": 1', r":2 is no JSON object: .*truncated"),
    (b"", " has no rows; a task is a JSON object in a line"),
    (b"\n  \n", " has no rows"),
    (b"[" * 100_000, ":1 is no JSON object: "),
]


@pytest.mark.parametrize(("content", "why"), BAD_LINES)
def test_a_bad_line_is_named_before_the_first_task(content: bytes, why: str, tmp_path: Path):
    source = JsonlSource(written(tmp_path / "bad.jsonl", content), fields={"a": "a"})
    with pytest.raises(ConfigError, match=r"bad\.jsonl" + why):
        take(source, 1)


def test_lines_may_be_empty_and_end_as_they_like(tmp_path: Path):
    content = b'\xef\xbb\xbf{"a": 1}\r\n\n{"a": "\xc3\xa4 \\n"}\n   \n\n{"a": 3}'
    given = take(JsonlSource(written(tmp_path / "odd.jsonl", content), passes=2), 99)
    assert [task.payload["a"] for task in given] == [1, "ä \n", 3] * 2
    assert [task.name for task in given[:3]] == ["odd.jsonl:1", "odd.jsonl:3", "odd.jsonl:6"]


def test_rows_of_several_files_follow_each_other(tmp_path: Path):
    paths = [write_jsonl(tmp_path / f"{n}.jsonl", [{"n": n, "m": m} for m in range(n)]) for n in (2, 0, 3)]
    given = take(JsonlSource(paths, passes=2), 99)
    assert [(task.payload["n"], task.payload["m"]) for task in given[:5]] == [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2)]
    assert [task.name for task in given[5:]] == ["2.jsonl:1", "2.jsonl:2", "3.jsonl:1", "3.jsonl:2", "3.jsonl:3"]


def test_a_pattern_takes_files_in_the_order_of_their_names(folder: Path):
    assert questions(JsonlSource(f"{folder}/part-?.jsonl")) == [row["question"] for row in ROWS]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("rws.jsonl", r"there is no file .*rws.jsonl; did you mean .*rows.jsonl\?"),
        ("none/x.jsonl", r"there is no file .*none/x.jsonl$"),
        ("x-*.jsonl", "no file is called .*x-\\*.jsonl; patterns are taken from the working directory"),
        ("dataset", r"dataset is a folder; name a file in it, or all with .*dataset/\*"),
        ("rows.jsonl.gz", "is packed, no row in it can be found at once; unpack it first"),
    ],
)
@pytest.mark.parametrize("make", [JsonlSource, ParquetSource])
def test_files_that_are_not_there_are_named_at_once(
    make: Callable[[str], RowSource], path: str, why: str, folder: Path
):
    (folder / "rows.jsonl.gz").touch()
    with pytest.raises(ConfigError, match=why):
        make(str(folder / path))


def test_no_files_at_all_are_refused():
    with pytest.raises(ConfigError, match="a list of files must not be empty"):
        JsonlSource([])


@pytest.mark.parametrize("table", [jsonl, in_parquet])
def test_a_file_that_is_changed_while_it_is_played_is_noticed(table: Table, tmp_path: Path):
    source = table(tmp_path, ROWS)()
    take(source, 3)
    table(tmp_path, [*ROWS, *ROWS])
    with pytest.raises(ConfigError, match=r"was changed while its tasks are played: \d+ bytes then, \d+ now"):
        take(source, 1)


@pytest.mark.parametrize("table", [jsonl, in_parquet])
def test_a_file_that_is_gone_is_noticed(table: Table, tmp_path: Path):
    source = table(tmp_path, ROWS)()
    take(source, 3)
    for path in tmp_path.iterdir():
        path.unlink()
    with pytest.raises(ConfigError, match="cannot be read any more: No such file"):
        take(source, 1)


def test_after_a_refusal_the_mended_file_is_read(tmp_path: Path):
    path = written(tmp_path / "t.jsonl", b"{oops\n")
    source = JsonlSource(path)
    with pytest.raises(ConfigError):
        take(source, 1)
    write_jsonl(path, ROWS)
    assert questions(source) == [row["question"] for row in ROWS]


# columns


def test_row_groups_that_were_used_last_stay_at_hand_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rows = [{"text": str(n) * 1000} for n in range(100)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet", row_group_size=10)
    monkeypatch.setattr(parquet, "AT_HAND_BYTES", 60_000)
    table = parquet.ParquetRows(tmp_path / "t.parquet")
    assert sum(1 for _ in table.scan([], [])) == 100
    for place in range(100):
        assert table.read([place], None)[0] == rows[place]
        assert sum(kept.nbytes for kept in table._at_hand.values()) <= 60_000
    assert len(table._at_hand) > 1


def test_bytes_lists_and_missing_values_pass_as_they_are(tmp_path: Path):
    row = {"image": b"\x00\xff", "nested": [{"a": [1.5]}], "none": None}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "t.parquet")
    assert take(ParquetSource(tmp_path / "t.parquet"), 1)[0].payload == row


def test_several_parquet_files_follow_each_other(tmp_path: Path):
    for number in range(3):
        pq.write_table(pa.Table.from_pylist(ROWS[number * 5 : number * 5 + 5]), tmp_path / f"{number}.parquet")
    given = take(ParquetSource(str(tmp_path / "*.parquet")), 99)
    assert [task.payload for task in given] == ROWS
    assert given[7].name == "1.parquet row 2"


def test_what_is_no_parquet_file_is_named(folder: Path):
    with pytest.raises(ConfigError, match=r"rows.jsonl cannot be read: ArrowInvalid"):
        take(ParquetSource(folder / "rows.jsonl"), 1)


def test_a_parquet_file_without_rows_is_refused(tmp_path: Path):
    pq.write_table(pa.table({"a": pa.array([], pa.int64())}), tmp_path / "t.parquet")
    with pytest.raises(ConfigError, match=r"t.parquet has no rows"):
        take(ParquetSource(tmp_path / "t.parquet"), 1)


# datasets


def test_a_part_of_a_saved_dataset_is_named(tmp_path: Path):
    parts = DatasetDict({"train": Dataset.from_list(ROWS), "test": Dataset.from_list(ROWS[:2])})
    parts.save_to_disk(tmp_path / "both")
    given = take(DatasetSource(tmp_path / "both", "test"), 99)
    assert [task.payload for task in given] == ROWS[:2]
    assert given[1].name == "both test row 1"
    with pytest.raises(ConfigError, match=r"both has several parts; name one in part: train, test"):
        take(DatasetSource(tmp_path / "both"), 1)
    with pytest.raises(ConfigError, match=r"both part 'tets' does not exist; did you mean test\?"):
        take(DatasetSource(tmp_path / "both", "tets"), 1)


def test_what_is_no_saved_dataset_is_named(folder: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"there is no folder .*nowhere with a dataset; save_to_disk makes one"):
        DatasetSource(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"dataset .* cannot be read: FileNotFoundError"):
        take(DatasetSource(tmp_path), 1)
    with pytest.raises(ConfigError, match=r"dataset .* is not one of several; leave part out"):
        take(DatasetSource(folder / "dataset", "train"), 1)


def test_what_has_no_rows_by_number_is_refused():
    with pytest.raises(ConfigError, match="a dataset must know its rows by number, got generator; save it to disk"):
        take(DatasetSource(row for row in ROWS), 1)


def test_a_dataset_without_rows_is_refused():
    with pytest.raises(ConfigError, match="the dataset has no rows"):
        take(DatasetSource(Dataset.from_dict({"a": []})), 1)


@pytest.mark.parametrize("missing", ["pyarrow.parquet", "datasets"])
def test_a_missing_package_is_named_with_what_brings_it(missing: str, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, missing, None)
    source = ParquetSource(folder / "rows.parquet") if missing != "datasets" else DatasetSource(folder / "dataset")
    with pytest.raises(ConfigError, match=r"needs a package that is not installed; pip install 'windrow\[data\]'"):
        take(source, 1)


def test_rows_are_json_all_the_way(folder: Path):
    """What a position and a payload hold can be written down."""
    source = JsonlSource(folder / "rows.jsonl")
    assert json.loads(json.dumps(take(source, 2)[0].payload)) == ROWS[0]


@pytest.mark.parametrize("empty", [b"\f", b"\v", b" \t", b"\r", b"\f\n\v\n \f"])
def test_an_empty_line_is_no_part_of_the_row_before_it(empty: bytes, tmp_path: Path):
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"a":1}\n' + empty + b'\n{"a":2}\n' + empty)
    assert [task.payload for task in take(JsonlSource(path), 9)] == [{"a": 1}, {"a": 2}]
