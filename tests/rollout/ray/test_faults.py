"""Hosts that die: what was in flight there is played again, and the run goes on."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable
from pathlib import Path

import pytest
import ray
from tests.rollout.ray.stage import Plain, at, full, said, staged
from tests.rollout.ray.test_contract import tasks

from windrow.errors import EngineError, HostLost
from windrow.rollout.ray import offices, players

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]


PATIENCE = 400
"""Looks, 50 ms apart."""


class Marking(Plain):
    """Leaves the number of its process where the test finds it."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        (Path(folder) / str(os.getpid())).touch()


def pids(folder: Path) -> list[int]:
    """The processes that play, or played."""
    return [int(file.name) for file in folder.iterdir()]


def test_the_death_of_an_engine_costs_no_token_and_the_run_goes_on():
    async def main() -> None:
        async with staged("ray", engines=2) as stage:
            plain = said([await full(stage.scheduler(tasks=tasks(8)), 0, -1)])
        async with staged("ray", engines=2, token_s=0.03) as stage:
            scheduler = stage.scheduler(tasks=tasks(8))
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(full(scheduler, 0, -1))
                await asyncio.sleep(0.5)
                stage.cluster.hosts["infer-1"].kill()
            batch = waiting.result()
            assert said([batch]) == plain
            assert [*scheduler.status().lost_engines] == ["infer-1"]

    asyncio.run(main())


def test_the_death_of_all_engines_ends_a_wait_with_the_reason():
    async def main() -> None:
        async with staged("ray", token_s=1.0) as stage:
            scheduler = stage.scheduler()
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(_failing(scheduler.get_batch(at(0), 8)))
                await asyncio.sleep(1.0)
                stage.cluster.hosts["infer-0"].kill()
            assert isinstance(waiting.result(), EngineError)
            assert "all engines are lost" in str(waiting.result())

    asyncio.run(main())


def test_whoever_plays_can_be_killed_and_another_one_takes_over(tmp_path: Path):
    async def main() -> None:
        async with staged("ray", token_s=0.02) as stage:
            scheduler = stage.scheduler(tasks=tasks(8), num_workers=2, env=Marking, env_args={"folder": str(tmp_path)})
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(full(scheduler, 0, -1))
                for _ in range(PATIENCE):
                    if len(pids(tmp_path)) == 2:
                        break
                    await asyncio.sleep(0.05)
                os.kill(pids(tmp_path)[0], signal.SIGKILL)
            assert len(waiting.result()) == 16
            ledger = scheduler.ledger()["train"]
            assert ledger.attempts.balance == 0
            assert ledger.attempts.delivered == 16

    asyncio.run(main())


def test_a_trajectory_outlives_whoever_played_it(tmp_path: Path):
    async def main() -> None:
        async with staged("ray") as stage:
            scheduler = stage.scheduler(
                tasks=tasks(8), env=Marking, env_args={"folder": str(tmp_path)}, config={"staleness": 1.0}
            )
            await full(scheduler, 0)
            for _ in range(PATIENCE):
                status = (await scheduler.survey()).scheduling
                if status is not None and status.lanes["train"].groups_ready == 4:
                    break
                await asyncio.sleep(0.05)
            os.kill(pids(tmp_path)[0], signal.SIGKILL)
            await asyncio.sleep(0.5)
            batch = await full(scheduler, 1)
            assert len(batch) == 8
            assert bool((batch.batch["infer_logprobs"][batch.batch["response_mask"]] < 0).all())

    asyncio.run(main())


class Fatal:
    """Takes its whole process with it."""

    async def start(self, task: object) -> str:
        return "come closer"

    async def step(self, action: str) -> object:
        os._exit(1)

    async def close(self) -> None:
        pass


def test_whoever_dies_again_and_again_ends_the_run_with_the_reason():
    async def main() -> None:
        async with staged("ray") as stage:
            scheduler = stage.scheduler(env=Fatal, config={"retry_after_s": 0.0})
            error = await _failing(scheduler.get_batch(at(0), 8))
            assert isinstance(error, HostLost)
            assert f"train-worker-0 died {players.DEATHS} times in a row" in str(error)

    asyncio.run(main())


class Number:
    """Knows the number of its process."""

    def pid(self) -> int:
        return os.getpid()


def test_an_office_that_hangs_holds_nobody_up_and_is_ended_with_those_who_play(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    short = offices.Limits(start_s=60.0, quiet_s=1.0, hands_s=1.0, leave_s=1.0, deaf_s=1.0)
    monkeypatch.setattr(offices, "limits", lambda _: short)
    monkeypatch.setattr(offices, "GIVE_UP_S", 1.0)

    async def main() -> None:
        async with staged("ray") as stage:
            scheduler = stage.scheduler(env=Marking, env_args={"folder": str(tmp_path)})
            await full(scheduler, 0)
            office = stage.cluster.office
            office.put("number", Number).answer(within_s=30)
            os.kill(office.look("number.pid", within_s=30), signal.SIGSTOP)
            with pytest.raises(HostLost, match="did not suspend within 1 s"):
                await scheduler.suspend()
            with pytest.raises(HostLost, match="host infer-office has heard nothing for 1 s, so it counts as lost"):
                await scheduler.get_batch(at(1), 8)
            await scheduler.shutdown()

    asyncio.run(main())
    assert [pid for pid in pids(tmp_path) if not _gone(pid)] == []


def test_two_jobs_in_one_ray_do_not_meet():
    async def main() -> None:
        async with staged("ray") as one, staged("ray") as other:
            first, second = one.scheduler(tasks=tasks(4)), other.scheduler(tasks=tasks(4))
            async with asyncio.TaskGroup() as group:
                mine = group.create_task(full(first, 0, -1))
                yours = group.create_task(full(second, 0, -1))
            assert said([mine.result()]) == said([yours.result()])
            assert first.ledger()["train"].attempts.delivered == 8
            assert second.ledger()["train"].attempts.delivered == 8

    asyncio.run(main())


def test_nothing_is_left_of_a_run(tmp_path: Path):
    others = _reserved()  # other tests may keep theirs

    async def main() -> None:
        async with staged("ray", engines=2) as stage:
            scheduler = stage.scheduler(num_workers=2, env=Marking, env_args={"folder": str(tmp_path)})
            await full(scheduler, 0)

    asyncio.run(main())
    assert pids(tmp_path)
    for pid in pids(tmp_path):
        assert _gone(pid), f"process {pid} is still there"
    for _ in range(PATIENCE):  # as soon as Ray has noticed
        if _reserved() == others:
            break
        time.sleep(0.05)
    assert _reserved() == others, "devices are still reserved"


def _gone(pid: int) -> bool:
    for _ in range(PATIENCE):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def _reserved() -> float:
    """CPUs of the cluster that somebody has."""
    return float(ray.cluster_resources()["CPU"] - ray.available_resources()["CPU"])


async def _failing(call: Awaitable[object]) -> Exception | None:
    try:
        await call
    except Exception as error:  # noqa: BLE001 -- looked at by the test
        return error
    return None
