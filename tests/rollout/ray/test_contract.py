"""The rollout scheduler's promises, over both runtimes and on real time: what holds in one process holds on Ray."""

import asyncio
from typing import Any

import pytest
from tests.rollout.ray.stage import Runtime, at, full, said, staged, versions

from windrow.errors import ConfigError, Refused
from windrow.protocol import DataProto
from windrow.rollout.scheduler import RolloutScheduler
from windrow.sources.lists import ListSource
from windrow.trajectory import Task, Trajectory


@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.ray)])
def runtime(request: pytest.FixtureRequest) -> Runtime:
    if request.param == "ray":
        request.getfixturevalue("ray_session")
    return request.param  # type: ignore[no-any-return]


def tasks(count: int) -> ListSource:
    return ListSource(Task(ordinal=0, seed=seed) for seed in range(count))


def test_batches_have_the_wanted_length_whole_groups_and_all_keys(runtime: Runtime):
    async def main() -> None:
        async with staged(runtime, engines=2) as stage:
            scheduler = stage.scheduler()
            for step in range(3):
                batch = await full(scheduler, step)
                groups = batch.batch["traj_group_id"].tolist()
                assert len(batch) == 8
                assert sorted(groups.count(group) for group in {*groups}) == [2, 2, 2, 2]
                assert len({*batch.batch["traj_id"].tolist()}) == 8
                assert batch.meta_info["global_step"] == step
                assert batch.meta_info["metrics"]["batch/trajectories_total"] == 8
                mask = batch.batch["response_mask"]
                assert bool((batch.batch["infer_logprobs"][mask] < 0).all())
                assert batch.batch["episode_scores"].tolist() == pytest.approx(batch.batch["scores"].sum(-1).tolist())

    asyncio.run(main())


def test_what_cannot_be_asked_for_is_refused_and_says_why(runtime: Runtime):
    async def main() -> None:
        async with staged(runtime) as stage:
            with pytest.raises(ConfigError, match=r"mode must be train or val, got 'trian'"):
                stage.scheduler("trian")  # type: ignore[arg-type]
            scheduler = stage.scheduler()
            with pytest.raises(ConfigError, match="global_step"):
                await scheduler.get_batch(DataProto(), 8)
            with pytest.raises(Refused, match=r"multiple of the group size \(2\), got 7; nearest: 6 or 8"):
                await scheduler.get_batch(at(0), 7)
            with pytest.raises(Refused, match="max_tasks"):
                await scheduler.get_batch(at(0), -1)
            assert len(await full(scheduler, 0)) == 8
            await full(scheduler, 1)
            with pytest.raises(Refused, match="global_step went back from 1 to 0"):
                await scheduler.get_batch(at(0), 8)
            with pytest.raises(ConfigError, match="has a train scheduler already"):
                stage.scheduler()

    asyncio.run(main())


def test_everything_is_one_batch_that_is_the_last_and_then_there_is_none(runtime: Runtime):
    async def main() -> None:
        async with staged(runtime) as stage:
            scheduler = stage.scheduler(tasks=tasks(5))
            batch = await full(scheduler, 0, -1)
            assert len(batch) == 10
            assert batch.meta_info["last"] is True
            assert await scheduler.get_batch(at(1), -1) is None

    asyncio.run(main())


def test_what_is_left_when_tasks_end_is_returned_once(runtime: Runtime):
    async def main() -> None:
        async with staged(runtime) as stage:
            scheduler = stage.scheduler(tasks=tasks(6))
            sizes = []
            for step in range(3):
                batch = await scheduler.get_batch(at(step), 8)
                sizes.append(None if batch is None else (len(batch), batch.meta_info["last"]))
            assert sizes == [(8, False), (4, True), None]

    asyncio.run(main())


def test_a_batch_comes_again_until_the_next_step(runtime: Runtime):
    async def main() -> None:
        async with staged(runtime) as stage:
            scheduler = stage.scheduler()
            first, again = await full(scheduler, 0), await full(scheduler, 0)
            assert first.meta_info["batch_id"] == again.meta_info["batch_id"]
            assert said([first]) == said([again])
            await full(scheduler, 1)
            assert scheduler.ledger()["train"].attempts.trained == 8

    asyncio.run(main())


async def _undisturbed(runtime: Runtime) -> list[list[int]]:
    async with staged(runtime, engines=2) as stage:
        return said([await full(stage.scheduler(tasks=tasks(8)), 0, -1)])


def test_nothing_is_sampled_while_suspended_and_no_token_is_lost(runtime: Runtime):
    async def main() -> None:
        plain = await _undisturbed(runtime)
        async with staged(runtime, engines=2, token_s=0.02) as stage:
            scheduler = stage.scheduler(tasks=tasks(8))
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(full(scheduler, 0, -1))
                for _ in range(3):
                    await asyncio.sleep(0.25)
                    await scheduler.suspend()
                    await scheduler.suspend()
                    before = stage.sampled()
                    await asyncio.sleep(0.2)
                    assert stage.sampled() == before
                    assert not waiting.done()
                    await scheduler.resume()
            assert said([waiting.result()]) == plain

    asyncio.run(main())


def test_shrinking_and_growing_lose_no_token_and_are_told(runtime: Runtime):
    async def main() -> None:
        plain = await _undisturbed(runtime)
        async with staged(runtime, engines=2, token_s=0.02) as stage:
            scheduler = stage.scheduler(tasks=tasks(8))
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(full(scheduler, 0, -1))
                await asyncio.sleep(0.3)
                report = await scheduler.shrink_sampler([1])
                assert report["offload_ranks"] == [1]
                assert float(str(report["shrink_duration_ms"])) > 0
                before = stage.of_engine("infer-1", "sampled")
                await asyncio.sleep(0.2)
                assert stage.of_engine("infer-1", "sampled") == before
                report = await scheduler.expand_sampler([1])
                assert report["load_ranks"] == [1]
            assert said([waiting.result()]) == plain

    asyncio.run(main())


def test_a_shrink_that_cannot_be_is_refused_and_changes_nothing(runtime: Runtime):
    async def main() -> None:
        async with staged(runtime, engines=2) as stage:
            scheduler = stage.scheduler()
            await scheduler.initialize()
            for devices, why in (([0, 1], "would leave no engine"), ([7], "7")):
                with pytest.raises(Refused, match=why):
                    await scheduler.shrink_sampler(devices)
            assert len(await full(scheduler, 0)) == 8

    asyncio.run(main())


def test_tokens_carry_the_version_that_engines_confirmed(runtime: Runtime):
    async def main() -> None:
        async with staged(runtime, engines=2) as stage:
            scheduler = stage.scheduler()
            assert versions(await full(scheduler, 0)) == {0}
            await scheduler.suspend()
            report = await scheduler.update_weights(5)
            assert report["version"] == 5
            batch = await full(scheduler, 1)
            assert versions(batch) == {5}
            assert batch.meta_info["version"] == 5
            with pytest.raises(Refused, match="above 5"):
                await scheduler.update_weights(5)

    asyncio.run(main())


def test_a_bound_lets_generation_go_on_and_lag_stays_within_it(runtime: Runtime):
    async def main() -> None:
        async with staged(runtime, engines=2) as stage:
            scheduler = stage.scheduler(config={"staleness": 1.0, "on_stale": "wait"})
            lags = []
            for step in range(5):
                batch = await full(scheduler, step)
                lags.append(batch.meta_info["metrics"]["batch/lag_versions/max"])
                await scheduler.suspend()
                await scheduler.update_weights(step + 1)
                await scheduler.resume()
                await asyncio.sleep(0.1)
            assert max(lags) == 1

    asyncio.run(main())


def _reject_some(group: list[Trajectory]) -> bool:
    """Needs the tokens of what it judges."""
    first = group[0]
    assert sum(len(chain.token_ids) for chain in first.chains) > first.policy_tokens > 0
    return first.task.ordinal % 3 != 0


def test_a_filter_of_the_users_own_sees_tokens_and_its_rejections_are_replaced(runtime: Runtime):
    async def main() -> None:
        async with staged(runtime) as stage:
            scheduler = stage.scheduler(filter=_reject_some)
            for step in range(2):
                assert len(await full(scheduler, step)) == 8
            assert scheduler.ledger()["train"].groups.dropped["filtered"] > 0

    asyncio.run(main())


class Count:
    """A reward that counts letters, and sees the tokens."""

    async def score(self, trajectory: Trajectory) -> float:
        return float(sum(len(chain.token_ids) for chain in trajectory.chains))


def test_a_reward_scores_apart_and_its_score_is_in_the_batch(runtime: Runtime):
    async def main() -> None:
        async with staged(runtime) as stage:
            batch = await full(stage.scheduler(reward=Count()), 0)
            lengths = batch.batch["attention_mask"].sum(-1).tolist()
            assert batch.batch["episode_scores"].tolist() == pytest.approx(lengths)
            steps = batch.batch["step_scores"].nansum(-1).tolist()
            assert steps == pytest.approx(lengths)

    asyncio.run(main())


def test_training_and_validation_share_engines_and_keep_their_books(runtime: Runtime):
    async def main() -> None:
        async with staged(runtime, engines=2) as stage:
            train = stage.scheduler()
            val = stage.scheduler("val", group_size=1, tasks=tasks(6))
            assert len(await full(train, 0)) == 8
            batch = await val.get_batch(
                DataProto(meta_info={"global_step": 0, "sampling": {"temperature": 0.0}, "pass": "greedy"}), -1
            )
            assert batch is not None
            assert len(batch) == 6
            assert batch.meta_info["temperature"] == 0.0
            assert train.ledger()["val"].attempts.delivered == 6
            await val.shutdown()
            assert len(await full(train, 1)) == 8

    asyncio.run(main())


def test_shutdown_ends_a_wait_with_none_and_can_be_repeated(runtime: Runtime):
    async def main() -> None:
        async with staged(runtime, token_s=1.0) as stage:
            scheduler = stage.scheduler()
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(scheduler.get_batch(at(0), 8))
                await asyncio.sleep(0.5)
                await scheduler.shutdown()
            assert waiting.result() is None
            await scheduler.shutdown()
            ledger = scheduler.ledger()["train"]
            assert (ledger.attempts.alive, ledger.attempts.balance) == (0, 0)

    asyncio.run(main())


def test_status_tells_who_plays_where(runtime: Runtime):
    async def main() -> None:
        async with staged(runtime, token_s=0.2) as stage:
            scheduler = stage.scheduler()
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(scheduler.get_batch(at(0), 8))
                found = await scheduler.survey()
                for _ in range(100):
                    if len(found.episodes) == 8:
                        break
                    await asyncio.sleep(0.05)
                    found = await scheduler.survey()
                assert {episode.engine for episode in found.episodes} == {"infer-0"}
                assert found.scheduling is not None
                assert found.scheduling.lanes["train"].attempts_playing == 8
                waiting.cancel()

    asyncio.run(main())


def test_a_run_goes_on_from_a_snapshot_as_if_nothing_had_happened(runtime: Runtime):
    async def main() -> None:
        async with staged(runtime) as stage:
            scheduler = stage.scheduler(tasks=tasks(8))
            begun = [await full(scheduler, 0)]
            saved = scheduler.snapshot()
        async with staged(runtime) as stage:
            scheduler = stage.scheduler(tasks=tasks(8))
            scheduler.restore(saved)
            again = await full(scheduler, 0)
            assert again.meta_info["batch_id"] == begun[0].meta_info["batch_id"]
            assert said([again]) == said(begun)
            rest = await full(scheduler, 1)
        whole = await _undisturbed(runtime)
        assert said([again, rest]) == whole

    asyncio.run(main())


def test_a_collator_has_the_last_word(runtime: Runtime):
    def marked(batch: DataProto) -> DataProto:
        batch.meta_info["mark"] = "seen"
        return batch

    async def main() -> None:
        async with staged(runtime) as stage:
            batch = await full(stage.scheduler(collator=marked), 0)
            assert batch.meta_info["mark"] == "seen"

    asyncio.run(main())


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_the_contract_s_own_example_runs_with_only_the_import_changed():
    import ray

    async def main() -> None:
        async with staged("ray", engines=2) as stage:
            given = stage.scheduler()
            config, env_manager_config = given._config, given._env
            await given.shutdown()
        async with staged("ray", engines=2) as stage:
            actor: Any = ray.remote(RolloutScheduler)
            scheduler = actor.remote(
                config=config,
                env_manager_config=env_manager_config,
                resource_manager=stage.devices,
                infer_cluster=stage.cluster,
                mode="train",
            )
            for step in range(3):
                await scheduler.suspend.remote()
                batch = await scheduler.get_batch.remote(data=at(step), batch_size=8)
                assert batch.batch["input_ids"].shape[0] == 8
                assert len({*batch.batch["traj_group_id"].tolist()}) == 4
            status = await scheduler.status.remote()
            assert status.mode == "train"
            await scheduler.shutdown.remote()

    asyncio.run(main())
