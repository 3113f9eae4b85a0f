"""Seeded random walks: an unruly world, and a fair end to each; a million events in `make soak`, a third of it in CI.

A walk is a row of lives. Each life is a new machine that is played for a while and then ends in one of three ways:
the world becomes fair and every consumer must get its batch; the source ends and everything must come out; or it is
shut down and nothing may start any more.
"""

import os
from dataclasses import dataclass, field

import pytest
from tests.core.book import ALL
from tests.core.play import Habits, Player

from windrow.core import events as e
from windrow.core.commands import DeliverBatch, EndBatches, RefuseBatch
from windrow.core.settings import ModeSettings, Settings
from windrow.types import MODES, Mode

SPARSE = 997
"""Long lives are checked at every so many steps."""


@dataclass(frozen=True)
class World:
    """One setting and the habits of the world around it."""

    settings: Settings
    habits: Habits = field(default_factory=Habits)


def mode(size: int, batch: int, **more: object) -> ModeSettings:
    return ModeSettings(group_size=size, batch_size=batch, **more)  # type: ignore[arg-type]


def settings(train: ModeSettings, **more: object) -> Settings:
    calm: dict[str, object] = {"breaker_share": 1.0, "backoff_s": 0.5, "lease_s": 64.0}
    return Settings(train=train, val=VAL, **(calm | more))  # type: ignore[arg-type]


VAL = mode(1, 4, on_stale="keep", ahead=False)
TWO: dict[str, Mode] = {"trainer": "train", "second": "train"}
BOTH: dict[str, Mode] = {"trainer": "train", "judge": "val"}
ALL_THREE = TWO | BOTH
ALL_FOUR = ALL_THREE | {"second judge": "val"}
FAIR = Habits(fair=True)

WORLDS: dict[str, World] = {
    "sync": World(settings(mode(2, 4)), Habits(consumers=TWO)),
    "sync_spares": World(settings(mode(3, 6, spares=2))),
    "sync_arrival": World(settings(mode(2, 6, order="arrival"))),
    "wait_1": World(settings(mode(2, 4, staleness=1.0, on_stale="wait")), Habits(consumers=TWO)),
    "wait_2_fair": World(settings(mode(2, 6, staleness=2.0, on_stale="wait")), FAIR),
    "wait_1_fair_spares": World(settings(mode(2, 4, spares=1, staleness=1.0, on_stale="wait")), FAIR),
    "keep_1_fair": World(settings(mode(2, 4, staleness=1.0)), FAIR),
    "keep_1": World(settings(mode(2, 4, staleness=1.0)), Habits(consumers=TWO)),
    "keep_half": World(settings(mode(1, 4, staleness=0.5)), Habits(fair=True)),
    "drop_1_spares": World(settings(mode(2, 4, spares=1, staleness=1.0, on_stale="drop"))),
    "varied": World(settings(mode(2, 4, filter="varied", max_filter_rounds=2))),
    "external": World(
        settings(mode(2, 4, filter="external", max_filter_rounds=1, on_filter_exhausted="error", staleness=1.0))
    ),
    "external_wait": World(
        settings(mode(2, 4, filter="external", max_filter_rounds=1, staleness=1.0, on_stale="wait"))
    ),
    "tail": World(settings(mode(2, 6, tail=0.5))),
    "tail_filter": World(settings(mode(2, 4, tail=1.0, filter="varied"))),
    "tags": World(
        settings(mode(2, 8, staleness=1.0, tags={"maths": 3.0, "maze": 1.0, "web": 1.0}), kinds={"browser": 2}),
        Habits(kinds=("python", "browser"), slots=4),
    ),
    "val": World(settings(mode(2, 4, staleness=1.0)), Habits(consumers=ALL_THREE, weights={"assign": 2.0})),
    "beats": World(
        settings(mode(2, 4, spares=1, staleness=1.0), beat_s=6.0, lease_s=10.0, worker_retries=1),
        Habits(weights={"beat": 12, "worker_join": 6}),
    ),
    "poor": World(
        settings(mode(2, 4, staleness=1.0), env_retries=0, reward_retries=1, engine_retries=1, worker_retries=0),
        Habits(weights={"fail": 8, "pardon": 2}),
    ),
    "syncs": World(
        settings(mode(1, 24, staleness=2.0), engine_retries=9),
        Habits(
            workers=4, slots=12, engines=6,
            weights={"arrive": 40, "fail": 8, "engine_load": 2, "publish": 3, "suspend": 2, "resume": 2},
        ),
    ),
    "sick": World(
        settings(mode(1, 8, staleness=1.0), engine_retries=99, backoff_s=0.0),
        Habits(blames=("engine", "engine", "env"), weights={"fail": 24, "finish": 12, "suspend": 0.2}),
    ),
    "epochs": World(
        settings(mode(2, 4, staleness=1.0, on_stale="wait")),
        Habits(
            consumers=ALL_FOUR, weights={"end_source": 1, "open_source": 3, "consumer_lose": 2, "withdraw": 2},
        ),
    ),
    "scores": World(
        settings(mode(2, 4, spares=1, staleness=1.0), lease_s=6.0, beat_s=8.0),
        Habits(weights={"episode": 30, "finish": 12, "beat": 12, "worker_join": 6, "suspend": 1, "engine_lose": 1}),
    ),
    "breaker": World(
        settings(mode(2, 4), breaker_share=0.5, breaker_window=6, backoff_s=0.0),
        Habits(weights={"fail": 8, "reset": 3}, consumers=BOTH),
    ),
    "wide": World(
        settings(mode(8, 64, spares=2, staleness=1.0)),
        Habits(workers=8, slots=12, engines=6, consumers=BOTH, weights={"finish": 60, "arrive": 40}),
    ),
}  # fmt: skip

SOAK = {"short": (10, 400), "middle": (8, 2_500), "long": (1, 24_000)}
"""How many lives of how many events; short ones are checked at every step, the others at every so many."""
BRIEF = {"short": (6, 300), "middle": (3, 1_500), "long": (1, 6_000)}
"""The first lives of each kind, cut shorter; every end comes at least once among the short and the middle ones."""
LIVES = SOAK if os.environ.get("WINDROW_SOAK") else BRIEF


def live(name: str, seed: int, events: int, check_every: int) -> Player:
    """One life, up to its end."""
    world = WORLDS[name]
    player = Player(world.settings, world.habits, f"{name}/{seed}")
    player.play(events, check_every)
    if world.habits.fair:
        promises_of_a_fair_trainer(player)
    ENDS[seed % len(ENDS)](player)
    player.machine.check()
    player.book.compare(player.machine)
    return player


def end_fair(player: Player) -> None:
    """Every consumer that asks in a fair world is served."""
    player.be_fair()
    for consumer, lane in player.habits.consumers.items():
        n = player.settings.of(lane).batch_size
        if isinstance(player.get_batch(consumer, n), RefuseBatch):
            assert isinstance(player.get_batch(consumer, n), DeliverBatch), "the filter accepts all by now"


def end_source(player: Player) -> None:
    """When the sources end, whatever lives comes out, the last batch says so, and then nothing comes."""
    player.be_fair()
    for lane in MODES:
        for tag in player.settings.of(lane).shares:
            player.step(e.SourceEnded(lane, tag))
    for consumer, lane in player.habits.consumers.items():
        n = player.settings.of(lane).batch_size if player.book.lanes[lane].limit else ALL
        while not isinstance(player.get_batch(consumer, n), EndBatches):
            continue
    assert player.machine.ledgers["train"].groups.alive == 0


def end_shut_down(player: Player) -> None:
    """After a shutdown nothing starts, and every answer is late."""
    player.step(e.ShutdownWanted())
    player.play(100, 10)
    assert not player.book.running


ENDS = (end_fair, end_source, end_shut_down)


def promises_of_a_fair_trainer(player: Player) -> None:
    """With one version per batch a hard bound drops nothing, and a soft one holds in the mean."""
    lane = player.book.lanes["train"]
    assert lane.groups.dropped.get("stale", 0) == 0
    count, total, _ = lane.lags
    assert total <= lane.settings.staleness * count


def test_a_soak_comes_to_a_million_events_and_every_walk_to_every_end():
    assert len(WORLDS) * sum(lives * events for lives, events in SOAK.values()) >= 1_000_000
    assert all(min(kinds["short"][0], kinds["middle"][0]) >= len(ENDS) for kinds in (SOAK, BRIEF))


@pytest.mark.parametrize("length", LIVES)
@pytest.mark.parametrize("name", WORLDS)
def test_walk(name: str, length: str):
    lives, events = LIVES[length]
    for seed in range(lives):
        live(name, seed, events, 1 if length == "short" else SPARSE)
