"""Task sources as a configuration file says them.

Promises: what a section says is checked when it is read, what is in its files when they are opened or first read. Paths
are taken from the working directory. Each section opens its source with the run's seed and the side that is played:
training, or what is held out.
"""

from typing import Annotated

from windrow.errors import ConfigError
from windrow.sources.curriculum import CurriculumSource, Ladder
from windrow.sources.huggingface import DatasetSource
from windrow.sources.jsonl import JsonlSource
from windrow.sources.lists import SeedSource
from windrow.sources.mixtures import BlendSource, MixtureSource, check_mixed, strides_of
from windrow.sources.parquet import ParquetSource
from windrow.sources.places import PlacedSource, check_tag, check_tags
from windrow.sources.protocol import TaskSource
from windrow.sources.replay import ReplaySource, check_bounds
from windrow.sources.rows import RowOptions
from windrow.trajectory import Split
from windrow.types import Meta, Value

Count = Annotated[int, Meta(ge=1)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Files = Annotated[list[str], Meta(min_length=1)]


class SeedTasks(Value, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=True, tag_field="kind", tag="seeds"):
    """Problems that environments make up from seeds."""

    max_tasks: Annotated[Count | None, Meta(description="so many tasks; none: without end")] = None
    tags: Annotated[list[str], Meta(description="tags that share them; none: those of the environments beside")] = []

    def __post_init__(self) -> None:
        check_tags(self.tags)

    def open(self, seed: int, split: Split) -> PlacedSource:
        return SeedSource(self.tags or [""], seed=seed, max_tasks=self.max_tasks, split=split)


class RowTasks(Value, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=True, tag_field="kind"):
    """What all tables have in common."""

    tag: Annotated[str, Meta(description="tag of all tasks")] = ""
    tag_field: Annotated[str | None, Meta(description="instead, the column in which each row says its tag")] = None
    fields: Annotated[
        dict[str, str], Meta(description="what the payload holds, and the column it comes from; none: the whole row")
    ] = {}
    where: Annotated[
        dict[str, str | int | float | bool], Meta(description="only rows with these values in these columns")
    ] = {}
    held_out: Annotated[
        float, Meta(ge=0.0, lt=1.0, description="share of the rows that validation plays and training never")
    ] = 0.0
    passes: Annotated[Count | None, Meta(description="how often every row is played; none: without end")] = 1
    shuffle: Annotated[bool, Meta(description="each pass in an order of its own, by the run's seed")] = False
    limit: Annotated[Count | None, Meta(description="only so many rows, the first that are meant")] = None

    def __post_init__(self) -> None:
        if self.tag and self.tag_field is not None:
            raise ConfigError(f"tag_field {self.tag_field!r} and tag {self.tag!r} contradict each other; give one")
        check_tag(self.tag)

    def options(self, seed: int, split: Split) -> RowOptions:
        return RowOptions(
            tag=self.tag,
            tag_field=self.tag_field,
            fields=self.fields,
            where=self.where,
            held_out=self.held_out,
            split=split,
            passes=self.passes,
            shuffle_seed=seed if self.shuffle else None,
            limit=self.limit,
            seed=seed,
        )


class JsonlTasks(RowTasks, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=True, tag="jsonl"):
    """Files with a JSON object in each line."""

    path: Annotated[str | Files, Meta(description="file, pattern such as data/*.jsonl, or a list of these")]

    def open(self, seed: int, split: Split) -> PlacedSource:
        return JsonlSource(self.path, **self.options(seed, split))


class ParquetTasks(RowTasks, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=True, tag="parquet"):
    """Parquet files."""

    path: Annotated[str | Files, Meta(description="file, pattern such as data/*.parquet, or a list of these")]

    def open(self, seed: int, split: Split) -> PlacedSource:
        return ParquetSource(self.path, **self.options(seed, split))


class DatasetTasks(RowTasks, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=True, tag="dataset"):
    """A Hugging Face dataset on disk."""

    path: Annotated[str, Meta(description="folder that save_to_disk has written")]
    part: Annotated[str | None, Meta(description="which of several datasets in it, such as train")] = None

    def open(self, seed: int, split: Split) -> PlacedSource:
        return DatasetSource(self.path, self.part, **self.options(seed, split))


class ReplayTasks(Value, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="replay"):
    """The tasks of a recording of trajectories, again."""

    path: Annotated[str, Meta(description="recording")]
    min_score: Annotated[float, Meta(description="only tasks with at least this mean score")] = float("-inf")
    max_score: Annotated[float, Meta(description="only tasks with at most this mean score")] = float("inf")
    passes: Annotated[Count | None, Meta(description="how often every task is played; none: without end")] = 1
    shuffle: Annotated[bool, Meta(description="each pass in an order of its own, by the run's seed")] = False

    def __post_init__(self) -> None:
        check_bounds(self.min_score, self.max_score)

    def open(self, seed: int, split: Split) -> PlacedSource:  # noqa: ARG002 -- a task that was played has its side
        return ReplaySource(
            self.path,
            min_score=self.min_score,
            max_score=self.max_score,
            passes=self.passes,
            shuffle_seed=seed if self.shuffle else None,
        )


PlainTasks = SeedTasks | JsonlTasks | ParquetTasks | DatasetTasks | ReplayTasks
"""Sources that are made of no others."""


class BlendTasks(Value, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=True, tag_field="kind", tag="blend"):
    """Several sources in one tag."""

    sources: Annotated[dict[str, PlainTasks], Meta(min_length=1, description="the sources, by name")]
    weights: Annotated[dict[str, float], Meta(description="how much of each is played; 1 if not given")] = {}
    tag: Annotated[str, Meta(description="tag of all tasks")] = ""

    def __post_init__(self) -> None:
        strides_of(self.sources, self.weights)
        check_tag(self.tag)

    def open(self, seed: int, split: Split) -> PlacedSource:
        sources = {name: source.open(seed, split) for name, source in self.sources.items()}
        return BlendSource(sources, self.weights, tag=self.tag)


class CurriculumTasks(
    Value, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=True, tag_field="kind", tag="curriculum"
):
    """Levels from easy to hard, which follow the results."""

    levels: Annotated[list[PlainTasks], Meta(min_length=1, description="a source for each level, the easiest first")]
    window: Annotated[Count, Meta(description="tasks after which the level is looked at")] = 32
    up: Annotated[Share, Meta(description="share of successful attempts that leads one level up")] = 0.8
    down: Annotated[Share, Meta(description="share below which it goes one level down")] = 0.0
    success: Annotated[float, Meta(description="score from which an attempt is a success")] = 1.0
    review: Annotated[Share, Meta(description="share of the tasks that come from the level below")] = 0.0
    tag: Annotated[str, Meta(description="tag of all tasks")] = ""

    def __post_init__(self) -> None:
        self._ladder()

    def open(self, seed: int, split: Split) -> TaskSource:
        levels = [level.open(seed, split) for level in self.levels]
        return CurriculumSource(levels, self._ladder(), tag=self.tag)

    def _ladder(self) -> Ladder:
        return Ladder(
            len(self.levels),
            window=self.window,
            up=self.up,
            down=self.down,
            success=self.success,
            review=self.review,
        )


class MixtureTasks(
    Value, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=True, tag_field="kind", tag="mixture"
):
    """A source for each tag."""

    tags: Annotated[
        dict[str, PlainTasks | BlendTasks | CurriculumTasks], Meta(min_length=1, description="the source of each tag")
    ]

    def __post_init__(self) -> None:
        check_mixed(self.tags)

    def open(self, seed: int, split: Split) -> TaskSource:
        return MixtureSource({tag: source.open(seed, split) for tag, source in self.tags.items()})


SourceConfig = PlainTasks | BlendTasks | CurriculumTasks | MixtureTasks
"""Whatever `tasks` in a configuration file may say."""
