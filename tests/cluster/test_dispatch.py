"""Calls through a cluster, in both runtimes."""

import asyncio

import numpy as np
import pytest
from tests.cluster.conftest import Quad
from tests.cluster.kit import SHORT_S, Odd

from windrow import DataProto, Dispatch, Worker, register
from windrow.cluster import calls
from windrow.cluster.calls import Call
from windrow.cluster.local import Cluster, ResourceManager, WorkerConfig
from windrow.errors import ConfigError, DataError

PATIENCE_S = 240.0


def test_everybody_knows_its_place(quad: Quad):
    assert quad.world_size == 4
    assert quad.where() == [
        ("quad-0", 0, (0,), 0, 0),
        ("quad-1", 1, (1,), 0, 1),
        ("quad-2", 2, (2,), 1, 0),
        ("quad-3", 3, (3,), 1, 1),
    ]


def test_one_to_all_gives_the_answers_of_all(quad: Quad):
    assert quad.scaled(10, by=2) == [20, 21, 22, 23]


def test_one_to_all_one_calls_all_and_gives_the_first_answer(quad: Quad):
    assert quad.remember("x") == 0
    assert quad.told() == [["x"]] * 4


def test_rank_zero_is_called_alone(quad: Quad):
    assert quad.remember_alone("y") == 0
    assert quad.told() == [["y"], [], [], []]


def test_all_to_all_gives_each_its_own(quad: Quad):
    assert quad.own([*"abcd"], extra=(4, 5, 6, 7)) == [(0, "a", 4), (1, "b", 5), (2, "c", 6), (3, "d", 7)]


def test_a_list_of_the_wrong_length_names_both_lengths(quad: Quad):
    with pytest.raises(DataError, match="own: item has 3 items and there are 4 workers; give one for each"):
        quad.own([1, 2, 3])


def test_rows_are_shared_out_and_put_together_in_order(quad: Quad):
    assert quad.named([2, 1, 0, 2], ["a", "b", "c"]) == ["c@0", "b@0", "a@1", "c@1"]


def test_a_batch_is_shared_out_and_put_together_in_order(quad: Quad):
    torch = pytest.importorskip("torch")
    got = quad.doubled(DataProto.from_dict({"x": torch.arange(6)}))
    assert got["y"].tolist() == [0, 2, 4, 6, 8, 10]
    assert got["dp"].tolist() == [0, 0, 0, 1, 1, 1]


def test_a_batch_that_is_padded_comes_back_as_long_as_it_was(quad: Quad):
    torch = pytest.importorskip("torch")
    got = quad.doubled(DataProto.from_dict({"x": torch.arange(5)}))
    assert got["y"].tolist() == [0, 2, 4, 6, 8]


def test_tensors_and_arrays_are_rows_too(quad: Quad):
    torch = pytest.importorskip("torch")
    assert torch.equal(quad.same(torch.arange(8).view(4, 2)), torch.arange(8).view(4, 2))
    assert np.array_equal(quad.same(np.arange(4)), np.arange(4))


def test_rows_that_cannot_be_shared_out_are_refused_and_never_cut_off(quad: Quad):
    with pytest.raises(DataError, match=r"same: 5 rows of rows cannot be shared out to 2 data-parallel ranks; pad"):
        quad.same([1, 2, 3, 4, 5])


def test_a_call_need_not_be_waited_for(quad: Quad):
    call = quad.scaled(1, blocking=False)
    assert isinstance(call, Call)
    assert call.result(PATIENCE_S) == [1, 2, 3, 4]
    assert call.done()
    assert call.result() == [1, 2, 3, 4]


def test_a_call_can_be_awaited(quad: Quad):
    async def main() -> None:
        one, other = quad.scaled(1, blocking=False), quad.scaled(2, blocking=False)
        assert await other == [2, 3, 4, 5]
        assert await one == await one == [1, 2, 3, 4]

    asyncio.run(main())


def test_a_worker_does_one_thing_after_the_other(quad: Quad):
    calls = [quad.number(count, blocking=False) for count in range(10)]
    for call in calls:
        call.result(PATIENCE_S)
    assert [sorted(told) for told in quad.told()] == [[*range(10)]] * 4


def test_in_this_process_calls_are_carried_out_in_the_order_in_which_they_were_made(local_quad: Quad):
    """Ray does not promise that of hosts with an event loop."""
    for count in range(10):
        local_quad.number(count, blocking=False)
    assert local_quad.told() == [[*range(10)]] * 4


def test_what_awaits_runs_at_the_same_time_as_what_blocks(quad: Quad):
    listening = quad.listen(blocking=False)
    hanging = quad.hang([0, 1, 2, 3], blocking=False)
    rung = [False] * 4
    while not all(rung):  # some may not listen yet
        rung = [before or now for before, now in zip(rung, quad.ring(), strict=True)]
    assert listening.result(PATIENCE_S) == [0, 1, 2, 3]
    assert not hanging.done()
    quad.free([True] * 4)
    assert hanging.result(PATIENCE_S) == [None] * 4


def test_an_exception_is_raised_as_what_it_is_and_names_who_raised_it(quad: Quad):
    with pytest.raises(Odd) as caught:
        quad.fail(2)
    assert caught.value.rank == 2
    assert caught.value.__notes__ == ["quad.fail: raised by worker quad-2 (rank 2 of 4)"]


def test_a_failure_is_told_although_the_others_hang(quad: Quad, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(calls, "NEWS_S", 0.1)
    call = quad.fail(1, others_hang=True, blocking=False)
    with pytest.raises(Odd):
        call.result(PATIENCE_S)
    with pytest.raises(Odd):
        asyncio.run(_awaited(call))
    quad.free([True, False, True, True])


async def _awaited(call: Call) -> object:
    return await call


def test_a_deadline_names_the_workers_the_method_and_the_seconds(quad: Quad):
    late = rf"quad.hang_shortly: worker .*quad-1 \(rank 1 of 4\).* has not answered within {SHORT_S:g} s; raise its"
    quad.where()  # they are there
    with pytest.raises(TimeoutError, match=late):
        quad.hang_shortly([1])
    quad.free([False, True, False, False])
    assert len(quad.where()) == 4, "it goes on with the next call"


def test_whoever_gives_up_waiting_can_come_back(quad: Quad):
    call = quad.hang([3], blocking=False)
    with pytest.raises(
        TimeoutError, match=r"worker .*quad-3 .* has not answered within 0.1 s; the call goes on, so give"
    ):
        call.result(0.1)
    quad.free([False, False, False, True])
    assert call.result(PATIENCE_S) == [None] * 4


def test_what_is_not_registered_is_refused_by_name(quad: Quad):
    with pytest.raises(AttributeError, match="cluster quad has no hidden; methods of its workers need @register"):
        quad.hidden()
    with pytest.raises(AttributeError, match=r"cluster quad has no scale; .*; did you mean scaled\?"):
        quad.scale(1)


def test_arguments_that_do_not_fit_are_refused_before_anybody_is_called(quad: Quad):
    with pytest.raises(TypeError, match="scaled: missing a required argument: 'number'"):
        quad.scaled()
    with pytest.raises(TypeError, match="scaled: got an unexpected keyword argument 'times'"):
        quad.scaled(1, times=2)


def test_workers_in_one_process_cannot_meet(local_quad: Quad):
    with pytest.raises(ConfigError, match="the 4 workers of cluster quad are in one process"):
        local_quad.open_meeting()


def test_a_cluster_that_was_shut_down_says_so():
    from windrow.errors import Refused

    made = Cluster("one", Worker, ResourceManager(), WorkerConfig())
    made.shutdown()
    made.shutdown()
    with pytest.raises(Refused, match="cluster one was shut down; make a new one"):
        made.open_meeting()


def test_what_has_not_begun_when_a_cluster_ends_is_refused(local_quad: Quad):
    from tests.cluster.conftest import quad_on

    from windrow.errors import Refused

    made = quad_on(ResourceManager(4))
    workers = [*made.workers.values()]
    hanging, waiting = made.hang([0, 1, 2, 3], blocking=False), made.where(blocking=False)
    listening = made.listen(blocking=False)
    assert all(worker.hangs.wait(PATIENCE_S) for worker in workers)
    made.shutdown()
    for worker in workers:
        worker.is_free.set()
    assert hanging.result(PATIENCE_S) == [None] * 4
    with pytest.raises(Refused, match="worker quad-0 was ended before it came to this"):
        waiting.result(PATIENCE_S)
    with pytest.raises(Refused, match="it was ended before it had answered"):
        listening.result(PATIENCE_S)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"timeout_s": 0}, "work: timeout_s must be above 0, got 0; leave it out to wait for ever"),
        ({"pad": True}, "work: whole and pad are for DP_MP_COMPUTE, which cuts into rows, got ONE_TO_ALL"),
        (
            {"dispatch_mode": Dispatch.DP_MP_COMPUTE, "whole": ["batsch"]},
            r"whole names no argument batsch; did you mean batch\?",
        ),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused(options: dict[str, object], why: str):
    def work(self: object, batch: object) -> None: ...

    with pytest.raises(ConfigError, match=why):
        register(**{"dispatch_mode": Dispatch.ONE_TO_ALL, **options})(work)  # type: ignore[arg-type]


def test_names_that_a_cluster_needs_for_itself_are_refused():
    def blocked(self: object, blocking: bool) -> None: ...

    class Shadowed(Worker[WorkerConfig]):
        @register(Dispatch.ONE_TO_ALL)
        def shutdown(self) -> None: ...

    with pytest.raises(ConfigError, match="blocked: a cluster's methods have blocking themselves"):
        register(Dispatch.ONE_TO_ALL)(blocked)
    with pytest.raises(
        ConfigError, match="shutdown cannot be called through a cluster, which has something of that name"
    ):
        Cluster("one", Shadowed, ResourceManager(), WorkerConfig())


def test_the_mesh_must_fit_the_workers():
    with pytest.raises(ConfigError, match="cluster quad: 4 workers cannot be tensor_parallel 3 × pipeline_parallel 1"):
        Cluster("quad", Worker, ResourceManager(4), WorkerConfig(tensor_parallel=3))
