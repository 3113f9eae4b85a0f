"""Episodes turn by turn, on engines of 10 tokens/s that read 100 tokens/s."""

from typing import Any

import pytest
from tests.sim.fifo import Fifo
from tests.sim.given import config, constant, turns

from windrow.core.commands import CancelAttempt, GrantLease, MoveAttempt
from windrow.core.events import AttemptEnded, AttemptProgressed, EpisodeEnded
from windrow.sim.world import World
from windrow.types import AttemptId, Failed, Finished

SLOW = {"count": 2, "base_tokens_per_s": 10, "peak_tokens_per_s": 10, "prefill_tokens_per_s": 100}
FIRST = AttemptId(0, 0)


class Stage(World):
    """A world without a scheduler: orders are given by hand, and what happens is written down."""

    def __init__(self, episode: dict[str, Any], **more: Any) -> None:
        made = config(episode=episode, **{"engines": SLOW, **more})
        super().__init__(made, Fifo(made.policy))
        self.fleet.open(self.episodes.answered)
        self.told.clear()

    def grant(self, index: int = 0, engine: str = "e0") -> None:
        self.perform(GrantLease(AttemptId(0, index), index, "w0", engine, 0, "", "train", 0, 1e6))

    def until(self, time: float) -> list[str]:
        """What was told up to a time."""
        lines = []
        while self.clock.next_time <= time:
            self.clock.jump()
            lines += [f"{round(self.clock.now, 6):g} {name(event)}" for event in self.told]
            self.told.clear()
        self.clock.now = time
        return lines


def name(event: object) -> str:
    match event:
        case AttemptProgressed(attempt, tokens, oldest):
            return f"{attempt} has {tokens} tokens from v{oldest}"
        case EpisodeEnded(attempt, tokens, oldest):
            return f"{attempt} was played to its end with {tokens} tokens from v{oldest}"
        case AttemptEnded(attempt, Finished(_, tokens, oldest)):
            return f"{attempt} finished with {tokens} tokens from v{oldest}"
        case AttemptEnded(attempt, Failed(blame, why)):
            return f"{attempt} failed: {blame} {why}"
        case _:
            return type(event).__name__


def two_turns(**more: Any) -> dict[str, Any]:
    """Start 1 s, read 200 tokens in 2 s, generate 10 in 1 s, step 3 s, see 50 more, generate 10, step 3 s."""
    times = {"start_s": constant(1), "step_s": constant(3)}
    return turns(2, 10, prompt_tokens=constant(200), observation_tokens=constant(50), **times, **more)


def test_one_episode_by_hand():
    """With everything known but the new: 1 + 2 + 1 + 3, then 0.5 + 1 + 3, then a score."""
    stage = Stage(two_turns(), reward={"time_s": constant(2)})
    stage.grant()
    assert stage.until(99) == [
        "4 g0.a0 has 10 tokens from v0",
        "8.5 g0.a0 has 20 tokens from v0",
        "11.5 g0.a0 was played to its end with 20 tokens from v0",
        "13.5 g0.a0 finished with 20 tokens from v0",
    ]


def test_a_score_is_waited_for_without_a_slot():
    stage = Stage(two_turns(), reward={"time_s": constant(2)})
    stage.grant()
    stage.until(11.4)
    assert stage.ledger.occupied == 1
    stage.until(11.6)
    assert stage.ledger.occupied == 0


def test_without_prefix_reuse_the_whole_history_is_read_again():
    """The second turn reads 200 + 10 + 50 tokens in 2.6 s."""
    stage = Stage(two_turns(), engines={**SLOW, "prefix_reuse": 0})
    stage.grant()
    assert stage.until(99)[1] == "10.6 g0.a0 has 20 tokens from v0"


def test_a_sibling_on_the_same_engine_need_not_read_the_prompt():
    stage = Stage(turns(1, 10, prompt_tokens=constant(200)))
    stage.grant(0)
    stage.until(5)
    stage.grant(1)
    stage.grant(2, "e1")
    lines = stage.until(99)
    assert lines[0] == "6 g0.a1 has 10 tokens from v0"
    assert lines[2] == "8 g0.a2 has 10 tokens from v0"


def test_moving_keeps_the_generated_tokens():
    """At 3.5 s 5 of 10 tokens are there; the new engine reads 205 in 2.05 s and generates the other 5 in 0.5 s."""
    stage = Stage(two_turns())
    stage.grant()
    stage.until(3.5)
    stage.perform(MoveAttempt(FIRST, "w0", "e1"))
    assert stage.until(99)[0] == "6.05 g0.a0 has 10 tokens from v0"


def test_without_an_engine_an_episode_waits_to_be_moved():
    stage = Stage(two_turns())
    stage.grant()
    stage.until(3.5)
    stage.perform(MoveAttempt(FIRST, "w0", ""))
    assert stage.until(50) == []
    stage.perform(MoveAttempt(FIRST, "w0", "e1"))
    assert stage.until(99)[0] == "52.55 g0.a0 has 10 tokens from v0"


def test_an_environment_goes_on_while_its_engine_changes():
    stage = Stage(two_turns())
    stage.grant()
    stage.until(5)
    stage.perform(MoveAttempt(FIRST, "w0", "e1"))
    assert stage.until(99)[0] == "10.6 g0.a0 has 20 tokens from v0"


def test_the_oldest_token_keeps_its_version_through_an_update():
    stage = Stage(two_turns())
    stage.grant()
    stage.until(3.5)
    stage.fleet.publish(1)
    stage.grant(1)
    lines = stage.until(99)
    assert [line.split("from ")[1] for line in lines if "finished" in line] == ["v0", "v1"]


def test_a_cancelled_attempt_is_never_heard_of_again():
    stage = Stage(two_turns())
    stage.grant()
    stage.until(3.5)
    stage.perform(CancelAttempt(FIRST, "w0", "spare"))
    stage.perform(CancelAttempt(FIRST, "w0", "spare"))
    assert stage.until(99) == []
    assert stage.ledger.sums.waste_s == {"spare": 3.5}


@pytest.mark.parametrize("episode", [two_turns(), {"kind": "duration", "task": constant(10)}])
def test_a_crash_ends_an_episode_on_the_way(episode: dict[str, Any]):
    stage = Stage(episode, faults={"crash_share": 1})
    stage.grant()
    assert stage.until(99)[-1].endswith("g0.a0 failed: env crashed")


@pytest.mark.parametrize(("hang_s", "told"), [(None, []), (40, ["g0.a0 failed: env hung"])])
def test_a_hung_episode_ends_when_its_worker_gives_it_up(hang_s: float | None, told: list[str]):
    stage = Stage({"kind": "duration", "task": constant(10)}, faults={"hang_share": 1, "hang_s": hang_s})
    stage.grant()
    assert [line.split(" ", 1)[1] for line in stage.until(99)] == told


def test_environment_time_is_what_environments_worked():
    stage = Stage(two_turns())
    stage.grant()
    stage.until(99)
    assert stage.episodes.env_s == pytest.approx(1 + 3 + 3)
