"""An engine whose device training borrows stands still meanwhile, by what it samples, and the other one goes on."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.pipelines.kit import Notes, small

from windrow.engines.torch.spells import Activity
from windrow.errors import InternalError
from windrow.pipelines.agentic import train_agent
from windrow.pipelines.config import Agentic, Validation
from windrow.pipelines.placing import Role, Roles, Workers
from windrow.pipelines.timeline import collisions
from windrow.pipelines.training import Outcome, Training
from windrow.protocol import DataProto
from windrow.rollout.scheduler import RolloutScheduler
from windrow.store.run import RunFolder
from windrow.train.config import EstimatorConfig
from windrow.types import but

LENT, KEPT = "engine-0", "engine-1"
WAIT_S = 20.0
"""How long an engine may take to sample something; a busy machine is no failure."""
Seen = list[tuple[Mapping[str, Activity], Mapping[str, Activity]]]


@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.ray)])
def file(request: pytest.FixtureRequest) -> Agentic:
    """Engines on 0 and 1, training on 0, and more to be played than training takes."""
    if request.param == "ray":
        request.getfixturevalue("ray_session")
    roles = Roles(actor_infer=Workers(device_mapping="0-1"), actor_train=Workers(device_mapping=0))
    validate = Validation(tasks=4, every=0, at_once=4, greedy=False)
    made = small(devices=2, roles=roles, steps=2, warm_start=None, runtime=request.param, validate=validate)
    return but(made, rollout=but(made.rollout, staleness=20.0))


class Watched(Training):
    """Looks at what the engines sample while the trainer works, and gives them time to."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.seen: Seen = []

    async def _get_ready(self, opened: AsyncExitStack) -> None:
        await super()._get_ready(opened)
        train = self._learning.train

        def slowly(batch: Any) -> dict[str, float]:
            before = self._playing.activity()
            until = time.monotonic() + WAIT_S
            while time.monotonic() < until and self._playing.activity()[KEPT].tokens == before[KEPT].tokens:
                time.sleep(0.05)
            found = train(batch)
            self.seen.append((before, self._playing.activity()))
            return found

        self._learning.train = slowly  # type: ignore[method-assign]  # as a test watches it


def watched(file: Agentic, root: Path) -> tuple[Outcome, Seen]:
    with RunFolder.create(root, file.name, "pipeline: agentic\n") as folder:
        run = Watched(file, folder, Notes())
        return asyncio.run(train_agent(run)), run.seen


def test_the_lent_engine_samples_nothing_while_training_runs_and_the_other_one_does(file: Agentic, tmp_path: Path):
    outcome, seen = watched(file, tmp_path)
    assert [after[LENT].forwards - before[LENT].forwards for before, after in seen] == [0, 0]
    assert all(after[KEPT].tokens > before[KEPT].tokens for before, after in seen)
    assert seen[1][0][LENT].tokens > seen[0][1][LENT].tokens, "it plays again when training is done"
    uses = {(span.lane, span.use) for span in outcome.timeline}
    assert {(LENT, "lent"), (LENT, "playing"), (KEPT, "playing"), ("training", "training")} <= uses
    assert collisions(outcome.timeline) == []


def test_an_engine_whose_device_only_the_critic_borrows_stands_still_as_well(tmp_path: Path):
    roles = Roles(actor_infer=Workers(device_mapping="0-1"), critic=Role(device_mapping=0))
    validate = Validation(tasks=4, every=0, at_once=4, greedy=False)
    made = small(devices=2, roles=roles, steps=2, warm_start=None, validate=validate)
    estimator = EstimatorConfig(kind="gae")
    file = but(made, rollout=but(made.rollout, staleness=20.0), train=but(made.train, estimator=estimator))
    outcome, seen = watched(file, tmp_path)
    assert [after[LENT].forwards - before[LENT].forwards for before, after in seen] == [0, 0]
    assert all(after[KEPT].tokens > before[KEPT].tokens for before, after in seen)
    assert (LENT, "lent") in {(span.lane, span.use) for span in outcome.timeline}
    assert collisions(outcome.timeline) == []


def test_reference_and_critic_need_the_turn_as_well(tmp_path: Path):
    roles = Roles(actor_train=Workers(device_mapping=0))
    with RunFolder.create(tmp_path, "small", "pipeline: agentic\n") as folder:
        run = Training(small(roles=roles), folder, Notes())
        with pytest.raises(InternalError, match=r"training on devices \[0\], where it is the turn of None"):
            asyncio.run(run.estimate(DataProto()))


def test_an_engine_that_does_not_give_its_device_up_ends_the_run(
    file: Agentic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def pretend(_: RolloutScheduler, __: list[int]) -> dict[str, object]:
        return {}

    monkeypatch.setattr(RolloutScheduler, "shrink_sampler", pretend)
    with pytest.raises(InternalError, match=r"engine engine-0 sampled \d+ tokens in \d+ forwards while .* training"):
        watched(file, tmp_path)
