"""Each of the usual mistakes is found, and nothing else is."""

import functools
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.checking import broken

from windrow.checking.examining import examine
from windrow.checking.leftovers import drawn_from, shared_chance
from windrow.checking.loading import Subject
from windrow.checking.rules import RULES
from windrow.checking.settings import CheckSettings, Report
from windrow.envs.agents import agent

SETTINGS = CheckSettings(tasks=6, max_steps=30, timeout_s=0.3)


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where we are, and our variables, are put back."""
    monkeypatch.chdir(Path.cwd())
    monkeypatch.setenv("WINDROW_TEST_OF_THE_CHECK", "0")


@functools.cache
def checked(make: Any, settings: CheckSettings = SETTINGS, form: Any = None) -> Report:
    form = form or ("env" if isinstance(make, type) else "factory")
    return examine(Subject(name=str(make), form=form, make=make, module=broken.__name__), settings)[0]


@pytest.mark.parametrize(
    ("make", "rules"),
    broken.TABLE,
    ids=[f"{at} {'+'.join(sorted(rules))}" for at, (_, rules) in enumerate(broken.TABLE)],
)
def test_a_mistake_is_found_and_no_other(make: Any, rules: set[str]):
    report = checked(make)
    assert {finding.rule for finding in report.findings} == rules, report.findings
    assert report.ok == all(finding.severity == "warning" for finding in report.findings)


def test_there_is_a_mistake_for_every_rule():
    met = {rule for _, rules in broken.TABLE for rule in rules} | {rule for _, rule, _ in broken.ELSEWHERE}
    assert met | {"reward-fails"} == set(RULES)


@pytest.mark.parametrize("make", [broken.Good, broken.Quiet])
def test_a_good_environment_has_no_findings(make: Any):
    report = checked(make, CheckSettings(tasks=12, timeout_s=10.0))
    assert report.findings == ()
    assert report.ok
    assert report.solve_score == 1.0
    assert report.random_score is not None
    assert report.random_score < 0.5


@pytest.mark.parametrize(
    ("make", "place", "words"),
    [
        (
            broken.RaisesInStep,
            "return Step(reward=1.0 / ",
            r"step raised ZeroDivisionError: float division by zero at ",
        ),
        (broken.SleepsInStep, "time.sleep(0.03)", r"step sleeps for 0\.0\d+ s without letting go at "),
        (broken.SleepsInATaskOfItsOwn, "time.sleep(0.03)", r"step sleeps for 0\.0\d+ s without letting go at "),
        (broken.AwaitsForEver, "await asyncio.Event().wait()", r"step did not return within 0\.3 s; it waits at "),
    ],
)
def test_a_finding_names_the_line(make: Any, place: str, words: str):
    found = checked(make).findings[0]
    file, line = found.place.rsplit(":")
    assert Path(file).name == "broken.py"
    assert place in Path(broken.__file__).read_text(encoding="utf-8").splitlines()[int(line) - 1]
    assert re.match(words, found.message)
    assert found.message.endswith(place) or place in found.message


def test_the_same_mistake_is_counted_once_with_the_task_that_showed_it_first():
    (found,) = checked(broken.ForgetsToReturn).findings
    assert found.count > 10
    assert (found.task, found.turn) == (0, 0)
    assert "is a return missing?" in found.message


def test_what_comes_with_windrow_is_held_to_more():
    mild, strict = checked(broken.HasNoSolve), checked(broken.HasNoSolve, form="shipped")
    assert (mild.ok, strict.ok) == (True, False)


def test_a_class_with_reset_may_block_because_it_is_isolated_by_whoever_runs_it():
    (found,) = checked(broken.SleepsInStep, form="plain").findings
    assert (found.rule, found.severity) == ("blocking", "warning")


@pytest.mark.parametrize(
    ("make", "form", "severity"),
    [
        (broken.with_a_lock, "factory", "error"),
        (broken.UsesALock, "env", "warning"),
        (broken.HoldsALock, "env", "error"),
        (broken.HoldsALock, "plain", "warning"),
    ],
)
def test_what_cannot_be_sent_at_all_is_worse_than_what_can_sometimes(make: Any, form: str, severity: str):
    (found,) = checked(make, form=form).findings
    assert found.severity == severity
    assert "cannot pickle '_thread.lock' object" in found.message


def test_seeds_that_torch_shares_are_looked_at_too():
    import torch

    before = shared_chance()
    assert drawn_from(before) == []
    torch.manual_seed(torch.initial_seed() + 1)
    assert drawn_from(before) == ["torch"]


def test_what_adapts_an_environment_is_not_where_it_fails():
    (found,) = [found for found in checked(agent(broken.wrong_rollout)).findings if found.rule == "raises"]
    assert Path(found.place.rsplit(":")[0]).name == "broken.py"


def test_full_marks_are_what_the_range_says():
    assert checked(broken.RewardIsLarge, CheckSettings(tasks=6, highest=10.0)).findings == ()


def test_the_check_of_a_long_episode_ends_where_it_is_told_to():
    report = checked(broken.NeverEnds)
    assert report.findings[0].turn == SETTINGS.max_steps - 1
    assert report.tasks < SETTINGS.tasks


def test_a_busy_machine_is_no_finding():
    """Several processes per core compute all the while."""
    spin = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(spin) for _ in range(3 * (os.cpu_count() or 1))]
    try:
        reports = [checked(make, CheckSettings(tasks=12)) for make in (broken.Good, broken.Quiet)]
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert [report.findings for report in reports] == [(), ()]
