"""Trainer hosts on Ray answer together or fail together, as trainer processes here do, and leave nothing behind."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.train import kit
from tests.train.test_processes import SAFETY_S, Clerk, alive, ids, refuse, until

from windrow.errors import ConfigError, DataError, TrainError
from windrow.protocol import DataProto
from windrow.train.on_ray import TrainerHosts

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]


class RayClerk(Clerk):
    """One that tells which process it is in."""

    def pid(self) -> int:
        return os.getpid()


def started(size: int = 2) -> TrainerHosts:
    return TrainerHosts(size, RayClerk, SAFETY_S)


@pytest.fixture(scope="module")
def pair(ray_session) -> Iterator[TrainerHosts]:
    with started() as made:
        yield made


def assert_nothing_is_left(made: TrainerHosts, pids: list[int]) -> None:
    until(lambda: alive(pids) == [])
    with pytest.raises(TrainError, match=r"trainer processes cannot echo: .*; start them again"):
        made.call("echo", 1)


def test_every_host_knows_its_place_and_the_first_one_answers(pair):
    assert pair.call("place") == (0, 2)
    assert pair.call_all("place") == [(0, 2), (1, 2)]
    assert pair.call("add", torch.tensor([1.0, 2.0]), times=3).tolist() == [6.0, 12.0]
    assert pair.run(add_up, 4) == 4


def add_up(clerk: Clerk, number: int) -> int:
    return int(clerk.peers.total(torch.tensor(float(number))).item()) // clerk.peers.size


def test_a_batch_arrives_as_it_was_and_every_host_has_its_own(pair):
    batch = kit.batch()
    before = ids(batch).clone()
    one, two = pair.call_all("scribble", batch)
    assert isinstance(one, DataProto)
    assert one.meta_info == batch.meta_info
    assert (ids(one) == 1).all()
    assert (ids(two) == 2).all()
    assert torch.equal(ids(batch), before)


def test_what_cannot_be_sent_is_refused_and_they_go_on(pair):
    lock = threading.Lock()
    with pytest.raises(TrainError, match=r"it cannot be sent between trainer processes: TypeError"):
        pair.call("echo", lock)
    with pytest.raises(ConfigError, match=r"cannot be sent what makes their object"):
        TrainerHosts(1, lambda peers: (peers, lock), SAFETY_S)
    with pytest.raises(ConfigError, match=r"train.processes must be 1 or more"):
        TrainerHosts(0, RayClerk, SAFETY_S)
    assert pair.call("place") == (0, 2)


def test_a_call_that_was_interrupted_is_finished_and_its_answer_is_not_taken_for_the_next(pair, tmp_path: Path):
    begun, sign = tmp_path / "begun", tmp_path / "sign"

    def interrupt() -> None:
        until(begun.exists)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        pair.call("wait_for", begun, sign)
    thread.join()
    sign.touch()
    assert pair.call_all("place") == [(0, 2), (1, 2)]


def test_a_host_that_raises_fails_the_call_with_its_traceback_and_ends_the_others():
    made = started()
    pids = made.call_all("pid")
    with pytest.raises(DataError, match=r"trainer process 1 of 2, raise_at: the ink is dry") as failed:
        made.call("raise_at", 1, DataError)
    assert "in raise_at" in str(failed.value.__cause__)
    assert_nothing_is_left(made, pids)


def test_a_host_that_is_killed_while_others_wait_for_it_is_named():
    made = started()
    pids = made.call_all("pid")
    with pytest.raises(TrainError, match=r"trainer process 1 of 2, die_at: its process is gone: .*died"):
        made.call("die_at", 1)
    assert_nothing_is_left(made, pids)


def test_a_call_has_a_deadline_and_says_where_the_host_was(tmp_path: Path):
    made = started(1)
    pids = made.call_all("pid")
    made._timeout_s = 0.1
    with pytest.raises(TrainError, match=r"wait_for: it has not answered after 0.1 s; raise train.timeout_s") as failed:
        made.call("wait_for", tmp_path / "begun", tmp_path / "never")
    assert "in wait_for" in str(failed.value.__cause__)
    assert_nothing_is_left(made, pids)


def test_closing_fails_a_call_that_is_under_way(tmp_path: Path):
    made = started(1)
    pids = made.call_all("pid")
    failed: list[TrainError] = []

    def call() -> None:
        with pytest.raises(TrainError) as error:
            made.call("wait_for", tmp_path / "begun", tmp_path / "never")
        failed.append(error.value)

    thread = threading.Thread(target=call)
    thread.start()
    until((tmp_path / "begun").exists)
    made.close()
    thread.join()
    assert len(failed) == 1
    made.close()
    assert_nothing_is_left(made, pids)


def test_what_cannot_be_made_is_said_as_it_was_said_there():
    with pytest.raises(ConfigError, match=r"trainer process [01] of 2, being made: there is no desk for clerk [01]"):
        TrainerHosts(2, refuse, SAFETY_S)


def test_hosts_for_which_there_is_no_room_are_not_waited_for_forever():
    with pytest.raises(TrainError, match=r"2 trainer processes found no place in the Ray cluster within 1 s"):
        TrainerHosts(2, RayClerk, 1.0, options=lambda rank: {"resources": {"moon": rank}})
