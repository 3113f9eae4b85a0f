"""One of each source, with fifteen tasks or without end, and the files that they need."""

import asyncio
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from tests.rollout.given_trajectories import trajectory

from windrow.sources.curriculum import CurriculumSource, Ladder
from windrow.sources.huggingface import DatasetSource
from windrow.sources.jsonl import JsonlSource
from windrow.sources.lists import ListSource, SeedSource
from windrow.sources.mixtures import BlendSource, MixtureSource
from windrow.sources.parquet import ParquetSource
from windrow.sources.protocol import TaskSource
from windrow.sources.recordings import Recorder
from windrow.sources.replay import ReplaySource
from windrow.trajectory import Task, Trajectory
from windrow.types import but

TOTAL = 15
ROWS: list[dict[str, Any]] = [
    {"question": f"{n} + 1?", "answer": str(n + 1), "domain": ["math", "code"][n % 2], "level": n // 5}
    for n in range(TOTAL)
]


def write_jsonl(path: Path, rows: Iterable[object]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def write_all(folder: Path) -> Path:
    """Files with the same rows in every format."""
    from datasets import Dataset, disable_progress_bars  # type: ignore[import-untyped]

    disable_progress_bars()
    write_jsonl(folder / "rows.jsonl", ROWS)
    for number in range(3):
        write_jsonl(folder / f"part-{number}.jsonl", ROWS[number * 5 : number * 5 + 5])
    pq.write_table(pa.Table.from_pylist(ROWS), folder / "rows.parquet", row_group_size=4)
    Dataset.from_list(ROWS).save_to_disk(folder / "dataset")
    with Recorder(folder / "played.rec") as out:
        for made in played():
            out.write(made)
    return folder


def played() -> list[Trajectory]:
    """Two attempts at each of fifteen tasks; those at task n score n and n + 1."""
    return [
        but(
            trajectory(group=number, index=index, score=float(number + index)),
            task=Task(ordinal=number * 3, seed=number, payload={"n": number}, name=f"old {number}"),
        )
        for number in range(TOTAL)
        for index in range(2)
    ]


def tasks(count: int, name: str = "") -> list[Task]:
    return [Task(ordinal=0, seed=seed, name=f"{name} {seed}") for seed in range(count)]


def curriculum(folder: Path) -> CurriculumSource:
    levels = [JsonlSource(folder / "rows.jsonl", where={"level": level}) for level in range(3)]
    return CurriculumSource(levels, Ladder(3, window=2, review=0.3))


def blend(folder: Path) -> BlendSource:
    short = ListSource(tasks(3, "short"))
    long = JsonlSource(folder / "rows.jsonl", shuffle_seed=5, limit=12)
    return BlendSource({"short": short, "long": long}, {"short": 1, "long": 2})


Make = Callable[[Path], TaskSource]
KITS: dict[str, Make] = {
    "list": lambda _: ListSource(tasks(5), passes=3),
    "endless list": lambda _: ListSource(tasks(5), passes=None),
    "seeds": lambda _: SeedSource(max_tasks=TOTAL),
    "endless seeds": lambda _: SeedSource(),
    "jsonl": lambda folder: JsonlSource(folder / "rows.jsonl"),
    "jsonl, several files": lambda folder: JsonlSource(str(folder / "part-*.jsonl")),
    "jsonl, three shuffled passes": lambda folder: JsonlSource(
        folder / "rows.jsonl", limit=5, passes=3, shuffle_seed=7
    ),
    "endless shuffled jsonl": lambda folder: JsonlSource(folder / "rows.jsonl", limit=4, passes=None, shuffle_seed=7),
    "parquet": lambda folder: ParquetSource(folder / "rows.parquet", fields={"q": "question"}),
    "shuffled parquet": lambda folder: ParquetSource(folder / "rows.parquet", shuffle_seed=1),
    "dataset": lambda folder: DatasetSource(folder / "dataset", fields={"q": "question", "a": "answer"}),
    "endless dataset": lambda folder: DatasetSource(folder / "dataset", passes=None, shuffle_seed=2),
    "replay": lambda folder: ReplaySource(folder / "played.rec"),
    "shuffled replay from memory": lambda _: ReplaySource(played(), shuffle_seed=3),
    "blend": blend,
    "endless blend": lambda folder: BlendSource({"rows": JsonlSource(folder / "rows.jsonl"), "seeds": SeedSource()}),
    "mixture": lambda folder: MixtureSource({"": JsonlSource(folder / "rows.jsonl", tag="own"), "b": SeedSource()}),
    "mixture of what has tags of its own": lambda folder: MixtureSource(
        {"": ReplaySource(folder / "played.rec"), "b": JsonlSource(folder / "part-0.jsonl", tag_field="question")}
    ),
    "mixture of a blend": lambda folder: MixtureSource({"": blend(folder)}),
    "curriculum": curriculum,
}
ENDLESS = {name for name in KITS if name.startswith("endless")} | {"mixture"}
"""The last because of one of its tags."""


def take(source: TaskSource, count: int, tag: str = "") -> list[Task]:
    return asyncio.run(source.next(tag, count))


def shown(given: Iterable[Task]) -> list[object]:
    """Tasks as plain values, the same in any process."""
    return [[t.ordinal, t.seed, t.payload, t.tag, t.name, t.split] for t in given]
