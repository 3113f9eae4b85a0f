"""A run of 200 steps takes no more memory at its end than when it had warmed up."""

import gc
from pathlib import Path
from resource import getpagesize

import pytest
from tests.pipelines.kit import Notes, small, train

from windrow.pipelines.config import Saving, Validation
from windrow.pipelines.watching import StepReport
from windrow.types import but

STEPS, WARM = 200, 50
GROWTH = 1.03


class Scales(Notes):
    """Weighs this process after every step."""

    def __init__(self) -> None:
        super().__init__()
        self.mb: list[float] = []

    def stepped(self, report: StepReport) -> None:
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.mb.append(pages * getpagesize() / 2**20)


@pytest.mark.parametrize("staleness", [0.0, 1.0])
def test_memory_is_flat_after_warm_up(staleness: float, tmp_path: Path):
    file = small(steps=STEPS, validate=Validation(tasks=16, every=20, at_once=16), save=Saving(every=20))
    scales = Scales()
    train(but(file, rollout=but(file.rollout, staleness=staleness)), tmp_path, scales)
    seen = {step: round(scales.mb[step - 1]) for step in (1, 50, 100, 150, 200)}
    print(f"\nstaleness {staleness:g}, MB after steps: {seen}")  # noqa: T201 -- what it measured
    early, late = scales.mb[WARM : WARM + 50], scales.mb[-50:]
    assert sum(late) / len(late) < GROWTH * sum(early) / len(early)
