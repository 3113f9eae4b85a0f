"""Task sources as a configuration file says them."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from tests.sources.kits import ROWS, take

from windrow.config import load
from windrow.errors import ConfigError
from windrow.rollout.config import EnvManagerConfig
from windrow.rollout.env_config import TagConfig
from windrow.sources.config import JsonlTasks, ReplayTasks, SeedTasks, SourceConfig
from windrow.sources.curriculum import CurriculumSource
from windrow.types import Value


class File(Value, frozen=True, gc=True):
    tasks: SourceConfig


def read_source(said: dict[str, Any]) -> SourceConfig:
    return load(None, [f"tasks={json.dumps(said)}"], File).value.tasks


def opened(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> SourceConfig:
    """What a file says, with the working directory where the data is."""
    monkeypatch.chdir(folder)
    path = folder / f"{os.getpid()}.yaml"
    path.write_text(text, encoding="utf-8")
    return load(path, [], File).value.tasks


@pytest.mark.parametrize(
    ("said", "tag", "count"),
    [
        ("{kind: seeds, max_tasks: 4}", "", 4),
        ("{kind: seeds, max_tasks: 4, tags: [a, b]}", "b", 2),
        ("{kind: jsonl, path: rows.jsonl}", "", 15),
        ("{kind: jsonl, path: [part-0.jsonl, part-2.jsonl], passes: 2}", "", 20),
        ("{kind: jsonl, path: part-*.jsonl, tag_field: domain, where: {level: 1}}", "math", 2),
        ("{kind: parquet, path: rows.parquet, limit: 3, fields: {q: question}, tag: m}", "m", 3),
        ("{kind: dataset, path: dataset, shuffle: true}", "", 15),
        ("{kind: replay, path: played.rec, max_score: 2.5}", "", 3),
        ("{kind: blend, sources: {a: {kind: seeds, max_tasks: 2}, b: {kind: jsonl, path: rows.jsonl}}}", "", 17),
        ("{kind: curriculum, levels: [{kind: seeds, max_tasks: 2}, {kind: seeds, max_tasks: 1}], tag: t}", "t", 3),
        ("{kind: mixture, tags: {a: {kind: seeds}, b: {kind: jsonl, path: rows.jsonl}}}", "b", 15),
    ],
)
def test_a_section_opens_its_source(said: str, tag: str, count: int, folder: Path, monkeypatch: pytest.MonkeyPatch):
    config = opened(f"tasks: {said}", folder, monkeypatch)
    assert len(take(config.open(0, "train"), 99, tag)) == count


def test_passes_without_end_are_null(folder: Path, monkeypatch: pytest.MonkeyPatch):
    config = opened("tasks: {kind: jsonl, path: rows.jsonl, passes: null}", folder, monkeypatch)
    assert config.open(0, "train").is_endless


def test_the_seed_of_the_run_shuffles_and_is_the_tasks_own(folder: Path, monkeypatch: pytest.MonkeyPatch):
    config = opened("tasks: {kind: jsonl, path: rows.jsonl, shuffle: true}", folder, monkeypatch)
    one, other, again = (take(config.open(seed, "train"), 15) for seed in (1, 2, 1))
    assert one == again
    assert [task.payload for task in one] != [task.payload for task in other] != ROWS
    assert other[3].seed == 5


def test_both_sides_of_what_is_held_out_come_from_one_section(folder: Path, monkeypatch: pytest.MonkeyPatch):
    config = opened("tasks: {kind: jsonl, path: rows.jsonl, held_out: 0.3}", folder, monkeypatch)
    train, held_out = take(config.open(0, "train"), 99), take(config.open(0, "held_out"), 99)
    assert train
    assert held_out
    assert sorted(task.payload["question"] for task in train + held_out) == sorted(row["question"] for row in ROWS)


def test_a_curriculum_climbs_as_its_section_says():
    config = read_source(
        {"kind": "curriculum", "levels": [{"kind": "seeds"}] * 2, "window": 1, "up": 0.5, "success": 0.3}
    )
    source = config.open(0, "train")
    assert isinstance(source, CurriculumSource)
    for expected, score in [(0, 0.2), (0, 0.4), (1, 0.0)]:
        (task,) = take(source, 1)
        assert source.level_of(task) == expected
        source.note(task, [score])


BAD: list[tuple[dict[str, Any], str]] = [
    ({"kind": "jsnl"}, r"tasks.kind must be one of .*, got 'jsnl'; did you mean jsonl\?"),
    ({"path": "x"}, "tasks.kind is missing; it must be one of"),
    ({"kind": "jsonl"}, "tasks.path is missing"),
    ({"kind": "jsonl", "path": []}, "tasks.path must be text or a list"),
    ({"kind": "jsonl", "path": "x", "shufle": True}, r"unknown setting tasks.shufle; did you mean tasks.shuffle\?"),
    ({"kind": "jsonl", "path": "x", "passes": 0}, "tasks.passes must be an integer of 1 or more or null, got 0"),
    ({"kind": "jsonl", "path": "x", "tag": "a", "tag_field": "b"}, "tasks.tag_field 'b' and tag 'a' contradict"),
    ({"kind": "jsonl", "path": "x", "held_out": 1}, "tasks.held_out must be a number of 0 or more and below 1, got 1"),
    ({"kind": "seeds", "path": "x"}, "unknown setting tasks.path; it needs tasks.kind: jsonl"),
    ({"kind": "curriculum", "levels": []}, "tasks.levels must be a list of at least 1 items"),
    ({"kind": "curriculum", "levels": [{"kind": "seeds"}], "up": 0.1, "down": 0.2}, "tasks.down must be below up"),
    ({"kind": "mixture", "tags": {"a": {"kind": "mixture"}}}, "tasks.tags.a.kind must be one of .*, got 'mixture'"),
]


@pytest.mark.parametrize(("said", "why"), BAD)
def test_a_section_that_cannot_be_is_refused(said: dict[str, Any], why: str):
    with pytest.raises(ConfigError, match=f"^command line: {why}"):
        read_source(said)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"kind": "jsonl", "path": "rosw.jsonl"}, r"there is no file rosw.jsonl; did you mean rows.jsonl\?"),
        ({"kind": "dataset", "path": "datasett"}, "there is no folder datasett with a dataset"),
        ({"kind": "replay", "path": "plaid.rec"}, "there is no file plaid.rec"),
        ({"kind": "blend", "sources": {"a": {"kind": "seeds"}}, "weights": {"b": 1}}, "weights has 'b'"),
    ],
)
def test_what_is_missing_is_named_when_the_source_is_opened(
    said: dict[str, Any], why: str, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(folder)
    with pytest.raises(ConfigError, match=why):
        read_source(said).open(0, "train")


def test_the_section_in_the_documents_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    root = Path(__file__).parents[2]
    page = (root / "docs" / "sources.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "examples").symlink_to(root / "examples")
    config = opened(shown.replace("task_source:", "tasks:"), tmp_path, monkeypatch)
    assert {*take(config.open(0, "train"), 1, "math")[0].payload} == {"question", "answer"}


@pytest.mark.parametrize(("tags", "played"), [({}, [""]), ({"math": TagConfig(), "g": TagConfig()}, ["math", "g"])])
def test_seeds_are_shared_by_the_tags_beside_them(tags: dict[str, TagConfig], played: list[str]):
    manager = EnvManagerConfig(tags=tags, task_source=SeedTasks(max_tasks=6))
    source = manager.source(0, "train")
    assert [len(take(source, 9, tag)) for tag in played] == [6 // len(played)] * len(played)


def test_tasks_without_a_tag_say_so(folder: Path):
    source = EnvManagerConfig(
        tags={"math": TagConfig()}, task_source=JsonlTasks(path=str(folder / "rows.jsonl"))
    ).source(0, "train")
    with pytest.raises(ConfigError, match="has tag 'math'; they have no tag, give them one"):
        take(source, 1, "math")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"kind": "seeds", "tags": ["a", "a"]}, "tag 'a' is given twice"),
        ({"kind": "seeds", "tags": ["#a"]}, "must not begin with #"),
        ({"kind": "jsonl", "path": "nowhere", "tag": "#a"}, "must not begin with #"),
        ({"kind": "replay", "path": "nowhere", "min_score": 2, "max_score": 1}, "min_score must not be above"),
        ({"kind": "blend", "sources": {"a": {"kind": "seeds"}}, "weights": {"c": 1}}, "weights has 'c'"),
        ({"kind": "blend", "sources": {"a": {"kind": "seeds"}}, "weights": {"a": 0}}, "weights.a must be"),
        ({"kind": "mixture", "tags": {"a:b": {"kind": "seeds"}}}, "must not have a : in it"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_read(said: dict[str, Any], why: str):
    with pytest.raises(ConfigError, match=why):
        read_source(said)


def test_a_file_that_is_no_recording_is_a_mistake_in_the_settings(tmp_path: Path):
    (tmp_path / "x.rec").write_text("no", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"cannot be played: .* is no recording"):
        take(ReplayTasks(path=str(tmp_path / "x.rec")).open(0, "train"), 1)
