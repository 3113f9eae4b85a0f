"""Engines that die in the middle of a run: it goes on with those that are left, and ends well."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.pipelines.kit import Notes, small

from windrow.pipelines.agentic import train_agent
from windrow.pipelines.config import Agentic
from windrow.pipelines.placing import Roles, Workers
from windrow.pipelines.training import Outcome, Training
from windrow.pipelines.watching import StepReport
from windrow.rollout.tenancy import Tenancy
from windrow.store.run import RunFolder
from windrow.types import but

SHARED = Roles(actor_infer=Workers(device_mapping="0-1"), actor_train=Workers(device_mapping="1"))


class Disaster(Notes):
    """Strikes after the first step."""

    def __init__(self, strike: Callable[[Training], None]) -> None:
        super().__init__()
        self._strike = strike
        self.run: Training

    def stepped(self, report: StepReport) -> None:
        super().stepped(report)
        if report.step == 1:
            self._strike(self.run)


def trained(file: Agentic, root: Path, strike: Callable[[Training], None]) -> tuple[Outcome, Disaster]:
    notes = Disaster(strike)
    with RunFolder.create(root, file.name, "pipeline: agentic\n") as folder:
        notes.run = Training(file, folder, notes)
        return asyncio.run(train_agent(notes.run)), notes


@pytest.mark.parametrize("engine", ["engine-0", "engine-1"])
def test_a_run_survives_an_engine_of_shared_devices_and_the_last_one_of_the_others(engine: str, tmp_path: Path):
    def strike(run: Training) -> None:
        place = run._playing.rollouts._place
        assert isinstance(place, Tenancy)
        assert place.queue is not None
        place.queue.fleet.lose(engine, "it was pulled out", is_gone=True)

    outcome, notes = trained(small(devices=2, roles=SHARED), tmp_path, strike)
    assert outcome.steps == len(notes.steps) == 3


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("roles", [Roles(), SHARED], ids=["apart", "shared"])
def test_a_run_on_ray_survives_the_death_of_an_engine(roles: Roles, tmp_path: Path):
    file = but(small(devices=2, roles=roles), runtime="ray")
    outcome, notes = trained(file, tmp_path, lambda run: run._playing._cluster.hosts["engine-1"].kill())
    assert outcome.steps == len(notes.steps) == 3
    assert all(0 < report.utilisation <= 1 for report in notes.steps)
