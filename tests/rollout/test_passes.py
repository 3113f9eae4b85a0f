"""Validation in several passes of one step: sampled in other ways, over the same tasks, while training goes on."""

import asyncio
from functools import partial
from typing import Any

import pytest
from tests.rollout.kit import Rig, later, played, queue_of
from tests.rollout.toys import Echo

from windrow import DataProto, RolloutScheduler
from windrow.envs.protocol import Step
from windrow.errors import ConfigError, Refused
from windrow.requests import Request, Sampling
from windrow.rollout.env_config import TagConfig
from windrow.rollout.passes import read_asked
from windrow.sources.lists import ListSource
from windrow.text import ByteCodec
from windrow.trajectory import Task

GREEDY: dict[str, Any] = {"pass": "greedy", "sampling": {"temperature": 0.0}}


def obedient(request: Request) -> list[int]:
    """Says as many letters as its temperature has tenths, so that a score tells how it was sampled."""
    return [97] * round(10 * request.sampling.temperature) + [ByteCodec.END]


def both(tasks: int = 6, **given: Any) -> tuple[Rig, RolloutScheduler]:
    rig = Rig(script=obedient, env=partial(Echo, turns=2), **given)
    exam = ListSource(Task(ordinal=0, seed=seed) for seed in range(tasks))
    return rig, rig.join("val", partial(Echo, turns=2), group_size=1, tasks=exam)


async def passed(val: RolloutScheduler, step: int, n: int = -1, **said: Any) -> Any:
    batch = await val.get_batch(DataProto(meta_info={"global_step": step, **said}), n)
    assert batch is not None
    return batch


def scores(batch: Any) -> list[float]:
    return sorted(batch.batch["episode_scores"].tolist())


@played
async def test_a_greedy_pass_after_a_sampled_one_plays_the_same_tasks_another_way():
    rig, val = both()
    sampled = await passed(val, 5)
    greedy = await passed(val, 5, **GREEDY)
    assert (scores(sampled), scores(greedy)) == ([20.0] * 6, [0.0] * 6)
    assert (sampled.meta_info["temperature"], greedy.meta_info["temperature"]) == (1.0, 0.0)
    assert rig.log.plays == dict.fromkeys(range(6), 2)


@played
async def test_training_between_two_passes_is_sampled_as_it_is_configured():
    rig, val = both(config={"staleness": 1.0})
    for step in range(3):
        assert scores(await passed(val, step, **GREEDY)) == [0.0] * 6
        training = await rig.full(step)
        assert (scores(training), training.meta_info["temperature"]) == ([20.0] * 8, 1.0)
        assert scores(await passed(val, step)) == [20.0] * 6


@played
async def test_a_pass_that_is_asked_for_again_is_the_same_batch_whatever_came_between():
    rig, val = both()
    batches = [await passed(val, 5, **said) for said in ({}, GREEDY, {}, GREEDY)]
    numbers = [batch.meta_info["batch_id"] for batch in batches]
    assert numbers == [0, 1, 0, 1]
    assert [batch.meta_info["temperature"] for batch in batches] == [1.0, 0.0, 1.0, 0.0]
    assert rig.log.plays == dict.fromkeys(range(6), 2)


@played
async def test_every_step_has_passes_of_its_own_and_those_of_the_last_one_are_forgotten():
    _, val = both()
    for step in range(4):
        for said in ({}, GREEDY):
            await passed(val, step, **said)
        queue = queue_of(val)
        assert queue is not None
        assert len(queue._dispatch.shelf) == 12
    ledger = val.ledger()["val"].groups
    assert (ledger.trained, ledger.delivered) == (36, 12)


@played
async def test_a_pass_of_an_earlier_step_is_forgotten_although_its_name_is_not_asked_for_again():
    _, val = both()
    await passed(val, 0)
    await passed(val, 0, **GREEDY)
    await passed(val, 1)
    queue = queue_of(val)
    assert queue is not None
    assert len(queue._dispatch.shelf) == 6
    assert val.ledger()["val"].groups.trained == 12


@played
async def test_a_pass_may_be_played_again_in_the_same_way_under_another_name():
    rig, val = both()
    again: dict[str, Any] = {"pass": "again"}
    one, other = await passed(val, 0), await passed(val, 0, **again)
    assert one.meta_info["batch_id"] != other.meta_info["batch_id"]
    assert scores(one) == scores(other)
    assert rig.log.plays == dict.fromkeys(range(6), 2)


@played
async def test_a_part_of_the_tasks_is_enough_for_a_pass():
    rig, val = both()
    for said in ({}, GREEDY):
        assert len(await passed(val, 0, 4, **said)) == 4
    assert rig.log.plays == dict.fromkeys(range(4), 2)


@played
async def test_a_pass_that_was_cancelled_leaves_nothing_to_the_next():
    rig, val = both()
    await rig.scheduler.initialize()
    waiting = asyncio.ensure_future(passed(val, 0))
    await later(0.55)
    waiting.cancel()
    await asyncio.wait({waiting})
    assert scores(await passed(val, 0, **GREEDY)) == [0.0] * 6
    assert scores(await passed(val, 0)) == [20.0] * 6


@played
async def test_two_passes_at_once_are_refused():
    _, val = both()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(passed(val, 0))
        await later(0.5)
        with pytest.raises(Refused, match="'val' waits for a batch, so 'val greedy' cannot begin"):
            await passed(val, 0, **GREEDY)
    assert len(first.result()) == 6
    assert len(await passed(val, 0, **GREEDY)) == 6


@played
async def test_one_pass_cannot_be_sampled_in_two_ways():
    rig, val = both()
    await passed(val, 0)
    with pytest.raises(Refused, match=r"temperature 1\); give the other pass a name of its own: meta_info\['pass'\]"):
        await passed(val, 0, sampling={"temperature": 0.0})
    assert len(await passed(val, 1, sampling={"temperature": 0.5})) == 6
    assert rig.log.plays == dict.fromkeys(range(6), 2)


@played
async def test_stop_tokens_of_the_tokenizer_end_a_response_in_every_pass():
    rig, val = both()
    short: dict[str, Any] = {"pass": "short", "sampling": {"stop_token_ids": (7,)}}
    await passed(val, 0, **short)
    assert {request.sampling.stop_token_ids for request in rig.engine.requests} == {(7, ByteCodec.END)}


@played
async def test_training_takes_no_pass_and_no_other_sampling():
    rig, _ = both()
    for said in ({"pass": "greedy"}, {"sampling": {"temperature": 0.0}}):
        with pytest.raises(ConfigError, match="for validation alone"):
            await passed(rig.scheduler, 0, 8, **said)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"sampling": {"temprature": 0.0}}, r"unknown setting sampling\.temprature; did you mean temperature\?"),
        ({"sampling": {"temperature": -1.0}}, r"data\.meta_info\['sampling'\]: .*>= 0"),
        ({"sampling": {"temperature": "cold"}}, r"data\.meta_info\['sampling'\]: "),
        ({"sampling": 0.0}, r"data\.meta_info\['sampling'\] names settings of the sampling, got 0\.0"),
        ({"pass": 3}, r"data\.meta_info\['pass'\] is the name of a pass, got 3"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(said: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        read_asked(DataProto(meta_info={"global_step": 0, **said}), "val", Sampling())


def test_sampling_is_the_configured_one_but_for_what_is_named():
    usual = Sampling(max_tokens=7, top_k=3)
    asked = read_asked(DataProto(meta_info={"global_step": 2, "sampling": {"temperature": 0}}), "val", usual)
    assert asked.sampling == Sampling(max_tokens=7, top_k=3, temperature=0.0)
    whole = read_asked(DataProto(meta_info={"global_step": 2, "sampling": Sampling(top_p=0.5)}), "val", usual)
    assert whole.sampling == Sampling(top_p=0.5)


# success


@played
async def test_success_is_the_share_of_episodes_with_the_full_score():
    rig = Rig(env=partial(Scored, scores=[0.0, 1.0, 0.3, 1.0]))
    metrics = (await rig.full(0)).meta_info["metrics"]
    assert metrics["episode/success"] == 0.5
    assert "episode/success/mean" not in metrics
    assert metrics["episode/score/mean"] == pytest.approx(0.575)


@played
async def test_what_counts_as_full_is_a_setting():
    rig = Rig(env=partial(Scored, scores=[0.0, 1.0, 0.3, 1.0]), success_at=0.3)
    assert (await rig.full(0)).meta_info["metrics"]["episode/success"] == 0.75


@played
async def test_a_score_made_of_parts_is_full_in_spite_of_rounding():
    rig = Rig(env=partial(Scored, scores=[sum([0.1] * 10)]))
    assert sum([0.1] * 10) < 1.0
    assert (await rig.full(0)).meta_info["metrics"]["episode/success"] == 1.0


@played
async def test_success_is_told_for_each_tag_by_its_own_measure():
    rig = Rig()
    tags = {
        "hard": TagConfig(env=lambda: Scored(rig.log, scores=[0.5]), success_at=1.0),
        "easy": TagConfig(env=lambda: Scored(rig.log, scores=[0.5]), success_at=0.5),
    }
    metrics = (await rig.full(0, 8, of=rig.join("val", tags=tags))).meta_info["metrics"]
    assert (metrics["episode/success_by_tag/hard"], metrics["episode/success_by_tag/easy"]) == (0.0, 1.0)
    assert metrics["episode/success"] == 0.5


class Scored(Echo):
    """Gives the score of its turn in a list, task by task."""

    def __init__(self, log: Any, *, scores: list[float]) -> None:
        super().__init__(log)
        self._scores = scores

    async def step(self, action: str) -> Any:
        await super().step(action)
        return Step(reward=self._scores[self.task.ordinal % len(self._scores)], terminated=True)
