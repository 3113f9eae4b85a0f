"""`windrow simulate --compare`: what scripts rely on, and the picture."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.given import EXAMPLES, LONG_TAIL, SMALL, Said, Windrow, files

PNG = b"\x89PNG\r\n\x1a\n"
POLICIES = {
    "barrier",
    "group_unit",
    "fixed_queues",
    "sync",
    "sync_tail",
    "keep_1",
    "wait_1",
    "wait_2",
    "wait_4",
    "drop_1",
}
FIGURES = {"steps_per_s", "slots_busy", "staleness_max", "groups_dropped", "length_bias", "waste"}
CAUSES = {"stale", "filtered", "spare", "failed", "lost", "cancelled", "tail"}
BOUNDS = {"barrier": 0, "group_unit": 0, "sync": 0, "sync_tail": 0, "wait_1": 1, "wait_2": 2, "wait_4": 4, "drop_1": 1}


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> tuple[Said, Path]:
    """All policies, once, as a process of its own; and the folder where it ran."""
    folder = tmp_path_factory.mktemp("compare")
    (folder / "examples").symlink_to(EXAMPLES)
    argv = [sys.executable, "-m", "windrow", "simulate", LONG_TAIL, *SMALL, "--compare", "--json"]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    return Said(done.returncode, done.stdout, done.stderr), folder


def test_scripts_find_every_policy_with_every_figure(everything: tuple[Said, Path]):
    said, _ = everything
    assert said.code == 0
    policies = said.result["policies"]
    assert set(policies) >= POLICIES
    assert all(set(figures) >= FIGURES for figures in policies.values())
    assert said.result["events_per_s"] > 0
    assert said.result["limits"]["work_s_per_step"] > 0
    assert set(said.result["limits"]["hard"]) == {"1", "2", "4"}
    assert said.result["skipped"] == {}


def test_figures_are_of_their_kind(everything: tuple[Said, Path]):
    for figures in everything[0].result["policies"].values():
        assert figures["steps_per_s"] > 0
        assert 0 < figures["slots_busy"] <= 1
        assert isinstance(figures["staleness_max"], int)
        assert isinstance(figures["groups_dropped"], int)
        assert -1 < figures["length_bias"] < 1
        assert set(figures["waste"]) <= CAUSES
        assert 0 <= sum(figures["waste"].values()) <= figures["slots_busy"]


def test_no_bound_is_exceeded_and_only_drop_drops(everything: tuple[Said, Path]):
    policies = everything[0].result["policies"]
    assert all(policies[name]["staleness_max"] <= bound for name, bound in BOUNDS.items())
    assert [name for name in POLICIES - {"drop_1"} if policies[name]["groups_dropped"]] == []


def test_every_limit_stands_beside_a_policy(everything: tuple[Said, Path]):
    result = everything[0].result
    for line in result["limits"]["against"]:
        ours = result["policies"][line["policy"]]
        assert line["ours_s"] == pytest.approx(1 / ours["steps_per_s"])
        assert line["ratio"] == pytest.approx(line["ours_s"] / line["limit_s"]), "one seed"


def test_people_read_the_same_on_standard_error(everything: tuple[Said, Path]):
    said, _ = everything
    assert all(f" {name} " in said.err for name in POLICIES)
    assert "work ÷ slots" in said.err
    assert "events per CPU second" in said.err
    assert "Traceback" not in said.err


def test_the_picture_is_named_after_the_config(everything: tuple[Said, Path]):
    said, folder = everything
    assert said.result["png"] == "long_tail.png"
    assert files(folder) == ["long_tail.png"]
    assert (folder / "long_tail.png").read_bytes().startswith(PNG)


def test_some_policies_and_a_picture_where_it_is_wanted(windrow: Windrow, folder: Path):
    said = windrow("simulate", LONG_TAIL, *SMALL, "--compare", "--policies", "keep_1,barrier", "--png", "p.png")
    assert said.code == 0
    assert "2 policies × 1 seeds × 2 steps" in said.out
    assert "picture: p.png" in said.out
    assert Path("p.png").read_bytes().startswith(PNG)
    assert files(folder) == ["p.png"]


def test_no_picture_if_none_is_wanted_and_no_limits_where_there_are_none(windrow: Windrow, folder: Path):
    argv = ["examples/sim/trace.yaml", "steps=1", "slots=16", "machine.train.batch_size=16"]
    said = windrow("simulate", *argv, "--compare", "--policies", "wait_1", "--no-png", "--json")
    assert said.code == 0
    assert (said.result["png"], said.result["limits"]) == (None, {})
    assert set(said.result["policies"]) == {"wait_1"}
    assert "windrow: warning: limits left out: " in said.err
    assert files(folder) == []


def test_a_comparison_of_which_nothing_can_be_played_is_refused(windrow: Windrow, folder: Path):
    said = windrow("simulate", "examples/sim/trace.yaml", "episode.path=nope.csv", "--compare", "--policies", "keep_1")
    assert said.code == 2
    assert "nope.csv" in said.err.splitlines()[-1]
    assert files(folder) == []


def test_a_barrier_without_a_single_step_is_no_division_by_zero(windrow: Windrow):
    """All episodes end at once, so no time passes and there is no rate."""
    at_once = "episode={kind: duration, task: {kind: constant, value: 0}}"
    said = windrow("simulate", LONG_TAIL, *SMALL, at_once, "--compare", "--policies", "barrier,keep_1", "--no-png")
    assert said.code == 0
    assert " barrier " in said.out


def test_every_policy_comes_out_the_same_twice(everything: tuple[Said, Path], windrow: Windrow):
    again = windrow("simulate", LONG_TAIL, *SMALL, "--compare", "--policies", "drop_1", "--no-png", "--json")
    assert json.dumps(again.result["policies"]["drop_1"]) == json.dumps(everything[0].result["policies"]["drop_1"])
