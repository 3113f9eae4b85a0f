"""A source that learns from results hears of every complete group, once."""

from collections.abc import Sequence

import pytest
from tests.rollout.kit import Rig, at, played
from tests.rollout.toys import Breaking, first_time

from windrow.errors import ConfigError
from windrow.sources.lists import ListSource
from windrow.trajectory import Task, Trajectory


class Learning(ListSource):
    """A source that is told how its tasks went."""

    def __init__(self, count: int) -> None:
        super().__init__(Task(ordinal=0, seed=seed) for seed in range(count))
        self.heard: dict[int, list[float]] = {}

    def note(self, task: Task, scores: Sequence[float]) -> None:
        assert task.ordinal not in self.heard, "a task is told once"
        self.heard[task.ordinal] = [*scores]


class Flat:
    """Everything is worth the same."""

    async def score(self, trajectory: Trajectory) -> float:
        return 0.5


@pytest.mark.parametrize("chosen", ["none", "varied"])
def test_a_source_is_told_the_scores_of_every_complete_group(chosen: str):
    """Also of those that the filter throws away: that all succeeded is what a curriculum waits for."""

    @played
    async def body() -> None:
        source = Learning(4)
        rig = Rig()
        val = rig.join("val", group_size=2, filter=chosen, reward=Flat(), tasks=source)
        await val.get_batch(at(0), -1)
        assert source.heard == {ordinal: [0.5, 0.5] for ordinal in range(4)}

    body()


@played
async def test_spares_and_retries_change_nothing_in_what_a_source_is_told():
    source = Learning(4)
    rig = Rig()
    val = rig.join(
        "val",
        lambda log: Breaking(log, when=first_time),
        group_size=2,
        group_size_redundancy=2,
        reward=Flat(),
        tasks=source,
    )
    await val.get_batch(at(0), -1)
    assert source.heard == {ordinal: [0.5, 0.5] for ordinal in range(4)}


@played
async def test_a_source_that_breaks_when_it_is_told_is_named():
    class Deaf(Learning):
        def note(self, task: Task, scores: Sequence[float]) -> None:
            raise KeyError("level")

    rig = Rig()
    val = rig.join("val", tasks=Deaf(2))
    with pytest.raises(ConfigError, match="task source of val was told the scores of task 0: KeyError: 'level'"):
        await val.get_batch(at(0), -1)
