"""`windrow rollout`: collect batches with any configuration."""

import pytest
from tests.cli.given import Windrow

SCRIPTED = "examples/rollout/scripted.yaml"
SMALL = ("batches=2", "devices=2", "rollout.rollout_batch_size=16", "rollout.train_env_manager.num_env_groups=4")


def test_what_was_collected_is_told_with_the_ledger(windrow: Windrow):
    said = windrow("rollout", SCRIPTED, *SMALL, "--json")
    assert said.code == 0
    found = said.result
    assert (found["batches"], found["trajectories"], found["groups"]) == (2, 32, 4)
    assert found["seconds"] > 0
    assert found["tokens"] > found["metrics"]["batch/policy_tokens_total"] > 0, "metrics are of the last batch"
    attempts = found["ledger"]["train"]["attempts"]
    assert set(attempts) == {"admitted", "trained", "delivered", "dropped", "alive"}
    assert attempts["alive"] == 0
    assert attempts["trained"] + attempts["delivered"] == 32
    assert attempts["admitted"] == 32 + sum(attempts["dropped"].values())
    assert set(attempts["dropped"]) <= {"shutdown"}
    assert set(found["ledger"]) == {"train", "val"}


def test_people_read_a_table(windrow: Windrow):
    said = windrow("rollout", SCRIPTED, *SMALL)
    assert said.code == 0
    assert "32 in 4 groups" in said.out
    assert "handed out" in said.out


def test_a_source_that_ends_is_said(windrow: Windrow):
    said = windrow("rollout", SCRIPTED, *SMALL, "rollout.train_env_manager.max_tasks=3")
    assert said.code == 0
    assert "no task is left" in said.out
    assert "24 in 3 groups" in said.out


def test_a_real_model_plays(windrow: Windrow):
    said = windrow("rollout", "examples/rollout/guess.yaml", *SMALL[2:], "batches=1", "--json")
    assert said.code == 0
    assert said.result["trajectories"] == 16
    assert said.result["tokens"] > 0


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("rollout.train_env_manager.env=gues", "unknown environment 'gues'; did you mean guess?"),
        ("rollout.rollout_batch_size=10", "batch_size must be a multiple of group_size (8), got 10; nearest: 8 or 16"),
        ("engine.setings={}", "unknown setting engine.setings; did you mean engine.settings?"),
        ("engine={kind: torch, model: nowhere}", "there is no folder 'nowhere' with a model; name one, or use tiny"),
        ("rollout.train_env_manager.filter=odd", "filter must be none, varied or a function, got 'odd'"),
    ],
)
def test_what_cannot_work_is_one_line(override: str, words: str, windrow: Windrow):
    said = windrow("rollout", SCRIPTED, override)
    assert said.code == 2
    assert said.line.endswith(words)


def test_a_run_whose_attempts_all_fail_says_why(windrow: Windrow):
    """The context is too short for the first prompt, so every task is quarantined and the breaker opens."""
    said = windrow("rollout", SCRIPTED, *SMALL, "rollout.sequence_length=4")
    assert said.code == 1
    assert "begins with" in said.err
    assert "sequence_length is 4" in said.err


def test_explain_knows_the_settings_of_a_rollout(windrow: Windrow):
    found = windrow("explain", SCRIPTED, "--json").result["settings"]
    origins = {row["key"]: row["origin"] for row in found}
    assert origins["rollout.staleness"].startswith(f"{SCRIPTED}:")
    assert origins["rollout.suspend_timeout_s"] == "default"
    assert "engine.settings.token_s" in origins
    assert windrow("explain", "--for", "rollout").code == 0
