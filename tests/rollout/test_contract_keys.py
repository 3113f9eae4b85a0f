"""Every key of a batch, and the example of how it is all used."""

import asyncio
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.rollout.kit import Rig, later, played, queue_of
from tests.rollout.toys import Echo, Rewriting, talk

from windrow import DataProto, GroupQueueManager, RolloutScheduler
from windrow.rollout.env_config import TagConfig
from windrow.trajectory import Chain, Trajectory


async def collected(**given: Any) -> tuple[Any, list[Trajectory]]:
    """A batch, and the trajectories that it was made of, row by row."""
    usual: dict[str, Any] = {"keep": True, "env": partial(Echo, turns=2)}
    rig = Rig(**usual | given)
    batch = await rig.full(0)
    by_name = {str(kept.attempt): kept for kept in rig.kept.values()}
    return batch, [by_name[name] for name in batch.non_tensor_batch["traj_name"]]


def rows(batch: Any, key: str) -> Any:
    return batch.batch[key].tolist()


@pytest.mark.parametrize(
    ("key", "kind", "axes"),
    [
        ("input_ids", "int64", 2),
        ("attention_mask", "int64", 2),
        ("position_ids", "int64", 2),
        ("response_mask", "bool", 2),
        ("prompt_mask", "bool", 2),
        ("scores", "float32", 2),
        ("infer_logprobs", "float32", 2),
        ("policy_versions", "int32", 2),
        ("turn_ids", "int32", 2),
        ("traj_group_id", "int64", 1),
        ("traj_id", "int64", 1),
        ("env_ids", "int64", 1),
        ("step_scores", "float32", 2),
        ("num_turns", "int64", 1),
        ("episode_scores", "float32", 1),
        ("turn_states", "int64", 2),
    ],
)
@played
async def test_every_key_has_its_kind_and_shape(key: str, kind: str, axes: int):
    batch, kept = await collected()
    width = max(len(each.chains[0].token_ids) for each in kept)
    found = batch.batch[key]
    assert str(found.dtype) == f"torch.{kind}"
    expected = {1: (8,), 2: (8, 2 if key in ("step_scores", "turn_states") else width)}
    assert tuple(found.shape) == expected[axes]


@played
async def test_tokens_are_all_turns_interleaved_and_padded_on_the_right():
    batch, kept = await collected()
    for ids, mask, places, trajectory in zip(
        rows(batch, "input_ids"), rows(batch, "attention_mask"), rows(batch, "position_ids"), kept, strict=True
    ):
        tokens = trajectory.chains[0].token_ids.tolist()
        rest = len(ids) - len(tokens)
        assert ids == tokens + [0] * rest
        assert mask == [1] * len(tokens) + [0] * rest
        assert places == [*range(len(tokens))] + [0] * rest


@played
async def test_the_response_mask_is_exactly_what_the_policy_sampled():
    batch, kept = await collected()
    for mask, trajectory in zip(rows(batch, "response_mask"), kept, strict=True):
        sampled = {place for turn in trajectory.turns for place in range(turn.begin, turn.end)}
        assert {place for place, set_ in enumerate(mask) if set_} == sampled
        assert len(trajectory.turns) == 2


@played
async def test_every_sampled_token_knows_its_turn():
    batch, kept = await collected()
    for found, trajectory in zip(rows(batch, "turn_ids"), kept, strict=True):
        for number, turn in enumerate(trajectory.turns):
            assert found[turn.begin : turn.end] == [number] * (turn.end - turn.begin)
        assert sum(number >= 0 for number in found) == trajectory.policy_tokens


@played
async def test_attempts_at_one_task_begin_in_the_same_state():
    """They were shown the same; other tasks begin in other states, and later turns are elsewhere."""
    batch, kept = await collected()
    states = rows(batch, "turn_states")
    by_task: dict[int, set[int]] = {}
    for (first, _), trajectory in zip(states, kept, strict=True):
        by_task.setdefault(trajectory.task.ordinal, set()).add(first)
    assert [len(firsts) for firsts in by_task.values()] == [1] * 4
    assert len(set.union(*by_task.values())) == 4
    assert len({second for _, second in states}) == 1  # all were shown "turn 1"


@played
async def test_the_prompt_mask_is_what_precedes_the_first_sampled_token():
    batch, kept = await collected()
    for mask, trajectory in zip(rows(batch, "prompt_mask"), kept, strict=True):
        assert sum(mask) == trajectory.turns[0].begin == len(f"task {trajectory.task.ordinal}\n")
        assert all(mask[: sum(mask)])


@played
async def test_the_score_stands_on_the_last_real_token():
    batch, kept = await collected()
    for scores, trajectory in zip(rows(batch, "scores"), kept, strict=True):
        last = len(trajectory.chains[0].token_ids) - 1
        assert [place for place, score in enumerate(scores) if score] == [last]
        assert scores[last] == trajectory.score > 0


@played
async def test_log_probabilities_are_the_engines_own():
    batch, kept = await collected()
    for found, trajectory in zip(rows(batch, "infer_logprobs"), kept, strict=True):
        chain = trajectory.chains[0]
        assert found[: len(chain.logprobs)] == chain.logprobs.tolist()
        assert all((found[place] < 0) == (place in sampled(chain)) for place in range(len(found)))


def sampled(chain: Chain) -> set[int]:
    return {place for begin, end, part in chain.spans() if part.author == "policy" for place in range(begin, end)}


@played
async def test_versions_follow_an_update_in_the_middle_of_an_episode():
    rig = Rig(script=talk(40, 40), env=partial(Echo, turns=2), config={"staleness": 2.0})
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(rig.full(0))
        await later(2.05)  # 20 tokens of the first turn
        await rig.scheduler.update_weights(1)
        await later(3.0)  # 21 more, and 9 of the second
        await rig.scheduler.update_weights(2)
    batch = waiting.result()
    for versions, mask in zip(rows(batch, "policy_versions"), rows(batch, "response_mask"), strict=True):
        assert all((version == -1) == (not set_) for version, set_ in zip(versions, mask, strict=True))
        told = [version for version in versions if version >= 0]
        assert [told.count(0), told.count(1), told.count(2)] == [20, 30, 32]
        assert told == sorted(told)
    assert batch.meta_info["version"] == 2
    assert batch.meta_info["metrics"]["batch/lag_versions/mean"] == 2


@played
async def test_rows_of_one_group_share_its_id_and_say_who_they_are():
    batch, kept = await collected()
    groups = batch.batch["traj_group_id"].tolist()
    assert groups == [trajectory.attempt.group for trajectory in kept]
    assert [groups.count(group) for group in sorted(set(groups))] == [2, 2, 2, 2]
    assert batch.batch["env_ids"].tolist() == [trajectory.seat for trajectory in kept]
    assert len(set(batch.batch["traj_id"].tolist())) == 8
    assert [*batch.non_tensor_batch["traj_group_name"]] == [f"g{group}" for group in groups]
    assert batch.non_tensor_batch["traj_name"][0] == str(kept[0].attempt)


@played
async def test_tags_say_which_environment_it_was():
    rig = Rig()
    tags = {tag: TagConfig(env=lambda: Echo(rig.log)) for tag in ("maze", "shop")}
    scheduler = rig.join("val", tags=tags)
    batch = await rig.full(0, 8, of=scheduler)
    assert sorted(batch.non_tensor_batch["tags"]) == ["maze"] * 4 + ["shop"] * 4


@played
async def test_rewards_per_turn_are_padded_with_nan_and_sum_up():
    turns = iter([1, 3] * 8)
    batch, kept = await collected(env=lambda log: Echo(log, turns=next(turns)))
    assert sorted(batch.batch["num_turns"].tolist()) == [1] * 4 + [3] * 4
    for steps, total, trajectory in zip(rows(batch, "step_scores"), rows(batch, "episode_scores"), kept, strict=True):
        rewards = [turn.reward for turn in trajectory.turns]
        assert steps[: len(rewards)] == rewards
        assert np.isnan(steps[len(rewards) :]).all()
        assert total == sum(rewards) == trajectory.score


@played
async def test_a_fixed_length_and_a_multiple_are_kept():
    assert rows((await collected(config={"sequence_length": 100}))[0], "input_ids")[0][99] == 0
    batch, _ = await collected(config={"pad_to_multiple": 32, "pad_token_id": 9})
    assert batch.batch["input_ids"].shape[1] % 32 == 0
    assert (batch.batch["input_ids"][batch.batch["attention_mask"] == 0] == 9).all()


@played
async def test_history_that_was_rewritten_gives_a_row_per_chain():
    rig = Rig(env=partial(Rewriting, at=0))
    batch = await rig.full(0)
    assert len(batch) == 16
    assert len(set(batch.batch["traj_id"].tolist())) == 8


@played
async def test_the_usage_example_in_its_embedded_form():
    rig = Rig(tasks=20, mode="val")  # so that there is no train scheduler yet
    config, env_manager_config = rig.scheduler._config, rig.scheduler._env
    resource_manager, infer_cluster = rig.devices, rig.cluster
    scheduler = RolloutScheduler(config, env_manager_config, resource_manager, infer_cluster, mode="train")
    rig.schedulers.append(scheduler)
    trained = []
    for step in range(5):
        await scheduler.suspend()
        await scheduler.update_weights(step + 1)
        batch: Any = await scheduler.get_batch(data=DataProto(meta_info={"global_step": step}), batch_size=8)
        trained.append(batch.batch["scores"].sum().item())
        assert batch.batch["input_ids"].shape[0] == batch.batch["traj_group_id"].shape[0] == 8
    assert len(trained) == 5
    assert isinstance(queue_of(scheduler), GroupQueueManager)
