"""Weights of tags: honoured over a window, lent, refunded, limited."""

from tests.core.given import complete, failed, feed, machine, only, opened, staffed, wanted

from windrow.core.commands import DeliverBatch, DropGroup, EndBatches, FetchTask
from windrow.core.events import BatchTrained, SourceEnded, VersionPublished


def asked(commands) -> dict[str, int]:
    return {fetch.tag: fetch.count for fetch in only(commands, FetchTask)}


def test_tasks_are_asked_for_by_weight():
    made = staffed(size=1, batch=8, tags={"maze": 3.0, "shop": 1.0})
    assert asked(made.step(wanted(8))) == {"maze": 6, "shop": 2}


def test_weights_are_honoured_over_a_window_not_per_batch():
    """Batches of two groups and weights 3 : 1: eight batches hold twelve and four."""
    made = staffed(size=1, batch=2, tags={"maze": 3.0, "shop": 1.0})
    total = {"maze": 0, "shop": 0}
    for step in range(8):
        for tag, count in asked(made.step(wanted(2, step=step))).items():
            total[tag] += count
            feed(made, count, tag=tag)
        complete(made, 2 * step, 2 * step + 1)
    assert total == {"maze": 12, "shop": 4}


def test_equal_claims_are_served_by_name():
    made = staffed(size=1, batch=1, tags={"shop": 1.0, "maze": 1.0})
    assert asked(made.step(wanted(1))) == {"maze": 1}


def test_the_share_of_a_source_that_ended_is_lent():
    made = staffed(size=1, batch=4, tags={"maze": 1.0, "shop": 1.0})
    assert asked(made.step(wanted(4))) == {"maze": 2, "shop": 2}
    assert asked(made.step(SourceEnded("train", "shop"))) == {"maze": 2}


def test_a_slow_tag_leaves_its_share_of_the_living_to_itself():
    """Shop's groups never finish: maze gets its half again and again, not the whole cap."""
    made = staffed(size=1, batch=2, staleness=1.0, slots=8, tags={"maze": 1.0, "shop": 1.0})
    made.step(wanted(1))
    feed(made, 2, tag="maze")
    feed(made, 2, tag="shop")
    complete(made, 0)
    assert asked(made.step(wanted(1, step=1))) == {"maze": 1}


def test_a_dropped_group_is_refunded_to_its_tag():
    made = staffed(size=1, batch=4, env_retries=0, tags={"maze": 1.0, "shop": 1.0})
    made.step(wanted(4))
    feed(made, 2, tag="maze")
    feed(made, 2, tag="shop")
    assert asked(made.step(failed(2, 0))) == {"shop": 1}


def test_what_an_ended_source_was_asked_for_is_not_served():
    made = machine(size=1, batch=6, tags={"maze": 1.0, "shop": 2.0})
    made.step(wanted(6))
    before = made._books.lanes["train"].tags.table["shop"]
    assert (before.asked, before.served) == (4, 2.0)
    made.step(SourceEnded("train", "shop"))
    after = made._books.lanes["train"].tags.table["shop"]
    assert (after.asked, after.served, after.ended) == (0, 0.0, True)


def test_the_claim_of_a_tag_that_could_not_be_served_is_limited_to_the_window():
    """Shop never answers while maze is served a hundred times; then shop gets no more than the window in a row."""
    made = staffed(size=1, batch=2, tags={"maze": 1.0, "shop": 1.0})
    made.step(wanted(1))
    feed(made, 1, tag="maze")
    for step in range(1, 101):
        complete(made, step - 1)
        assert asked(made.step(wanted(1, step=step))) == {"maze": 1}
        feed(made, 1, tag="maze")
    table = made._books.lanes["train"].tags.table
    assert table["maze"].served - table["shop"].served <= 4 * 2 / 2 + 1


def test_trained_groups_leave_their_tag():
    made = opened(size=1, batch=2, tags={"maze": 1.0, "shop": 1.0}, tasks=0)
    feed(made, 1, tag="maze")
    feed(made, 1, tag="shop")
    complete(made, 0, 1)
    assert [share.alive for share in made._books.lanes["train"].tags.table.values()] == [1, 1]
    made.step(BatchTrained(0))
    assert [share.alive for share in made._books.lanes["train"].tags.table.values()] == [0, 0]


def test_a_batch_ends_when_all_sources_have_ended():
    made = staffed(size=1, batch=2, tags={"maze": 1.0, "shop": 1.0})
    made.step(wanted(2))
    feed(made, 1, tag="maze")
    complete(made, 0)
    made.step(SourceEnded("train", "maze"))
    assert only(made.step(SourceEnded("train", "shop")), DeliverBatch)[0].last


def test_nothing_is_asked_for_when_all_sources_have_ended():
    made = opened(size=1, batch=2)
    made.step(SourceEnded("train"))
    commands = made.step(VersionPublished(1, loaded=True))
    assert [type(command) for command in commands[-2:]] == [DropGroup, EndBatches]
