"""Trainer processes answer together or fail together, and leave nothing behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests.train import kit

from windrow.errors import ConfigError, DataError, TrainError
from windrow.protocol import DataProto
from windrow.train.processes import ROOM, TrainerProcesses
from windrow.train.remote import remote
from windrow.train.rooms import sweep
from windrow.train.sharding import Shards

SAFETY_S = 300.0
"""No test is judged by the clock; this only ends one that hangs."""


def ids(batch: DataProto) -> torch.Tensor:
    found = batch["input_ids"]
    assert isinstance(found, torch.Tensor)
    return found


class Clerk:
    """Something that is made in every process."""

    def __init__(self, peers: Shards) -> None:
        self.peers = peers
        self.asked = 0

    @property
    def place(self) -> tuple[int, int]:
        return (self.peers.rank, self.peers.size)

    def add(self, numbers: torch.Tensor, *, times: int = 1) -> torch.Tensor:
        self.asked += 1
        return self.peers.total(numbers * times)

    def echo(self, thing: object) -> object:
        return thing

    def scribble(self, batch: DataProto) -> DataProto:
        ids(batch).fill_(self.peers.rank + 1)
        dist.barrier()
        return batch

    def raise_at(self, rank: int, kind: type[Exception]) -> None:
        if self.peers.rank == rank:
            raise kind("the ink is dry")
        dist.barrier()

    def die_at(self, rank: int) -> None:
        if self.peers.rank == rank:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()

    def leave_at(self, rank: int) -> None:
        if self.peers.rank == rank:
            sys.stderr.write("I have had enough\n")
            sys.stderr.flush()
            os._exit(3)

    def wait_for(self, begun: Path, sign: Path) -> str:
        begun.touch()
        while not sign.exists():
            time.sleep(0.01)
        return "done at last"


def refuse(peers: Shards) -> Clerk:
    raise ConfigError(f"there is no desk for clerk {peers.rank}")


def started(size: int = 2) -> TrainerProcesses:
    return TrainerProcesses(size, Clerk, SAFETY_S)


@pytest.fixture(scope="module")
def pair() -> Iterator[TrainerProcesses]:
    with started() as processes:
        yield processes


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def assert_nothing_is_left(processes: TrainerProcesses, pids: list[int]) -> None:
    assert alive(pids) == []
    assert not processes.room.exists()
    with pytest.raises(TrainError, match=r"trainer processes cannot echo: .*; start them again"):
        processes.call("echo", 1)


def until(happened) -> None:
    end = time.monotonic() + SAFETY_S
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_every_process_knows_its_place_and_the_first_one_answers(pair):
    assert pair.call("place") == (0, 2)
    assert pair.call_all("place") == [(0, 2), (1, 2)]
    assert pair.call("add", torch.tensor([1.0, 2.0]), times=3).tolist() == [6.0, 12.0]


def test_a_batch_arrives_as_it_was_and_every_process_has_its_own(pair):
    batch = kit.batch()
    there = pair.call("echo", batch)
    assert isinstance(there, DataProto)
    assert there.meta_info == batch.meta_info
    assert there.keys() == batch.keys()
    assert all(torch.equal(there[name], batch[name]) for name in batch.keys())  # noqa: SIM118 -- it is no mapping
    scribbled = pair.call_all("scribble", batch)
    assert [set(ids(one).flatten().tolist()) for one in scribbled] == [{1}, {2}]
    assert torch.equal(ids(batch), ids(kit.batch()))


def test_what_was_sent_is_removed_when_it_was_read(pair):
    answer = pair.call("echo", torch.ones(1000))
    assert not [*pair.room.glob("ask-*"), *pair.room.glob("answer-*")]
    assert float(answer.sum()) == 1000.0


def test_a_function_can_be_sent_along(pair):
    factor = 7
    assert pair.run(lambda clerk, number: clerk.peers.size * factor + number, 1) == 15


def test_an_object_is_used_as_if_it_were_here(pair):
    clerk = remote(pair, "", Clerk)
    assert clerk.place == (0, 2)
    assert clerk.add(torch.tensor(2.0)).item() == 4.0
    peers = remote(pair, "peers", Shards)
    assert peers.total(torch.tensor(3.0)).item() == 6.0
    with pytest.raises(AttributeError, match=r"Clerk has no method ad that can be called from here; did you mean add"):
        clerk.ad  # type: ignore[attr-defined]  # noqa: B018


def test_the_terminal_does_not_reach_them(pair):
    for pid in pair.pids:
        assert os.getsid(pid) == pid != os.getsid(0)
        os.kill(pid, signal.SIGINT)
    assert pair.call_all("place") == [(0, 2), (1, 2)]


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


def test_they_outlive_the_thread_that_started_them_and_die_with_close():
    made: list[TrainerProcesses] = []
    thread = threading.Thread(target=lambda: made.append(started(1)))
    thread.start()
    thread.join()
    (processes,) = made
    pids = processes.pids
    assert processes.call("place") == (0, 1)
    processes.close()
    processes.close()
    assert_nothing_is_left(processes, pids)


@pytest.mark.parametrize(
    ("kind", "raised", "words"),
    [(KeyError, TrainError, "KeyError: 'the ink is dry'"), (DataError, DataError, "the ink")],
)
def test_a_process_that_raises_fails_the_call_with_its_traceback_and_ends_the_others(kind, raised, words):
    processes = started(2 if raised is TrainError else 1)
    pids = processes.pids
    last = processes.size - 1
    with pytest.raises(raised, match=rf"trainer process {last} of {last + 1}, raise_at: {words}") as failed:
        processes.call("raise_at", last, kind)
    assert "in raise_at" in str(failed.value.__cause__)
    assert_nothing_is_left(processes, pids)


def test_a_process_that_is_killed_while_others_wait_for_it_is_named():
    processes = started()
    pids = processes.pids
    with pytest.raises(TrainError, match=r"trainer process 1 of 2, die_at: its process was killed by SIGKILL"):
        processes.call("die_at", 1)
    assert_nothing_is_left(processes, pids)


def test_the_last_words_of_a_process_are_heard():
    processes = started(1)
    with pytest.raises(TrainError, match=r"leave_at: its process ended with code 3") as failed:
        processes.call("leave_at", 0)
    assert "I have had enough" in str(failed.value.__cause__)


def test_a_call_has_a_deadline_and_says_where_the_process_was(tmp_path: Path, caplog):
    processes = started(1)
    pids = processes.pids
    processes._timeout_s = 0.1
    with pytest.raises(TrainError, match=r"wait_for: it has not answered after 0.1 s; raise train.timeout_s") as failed:
        processes.call("wait_for", tmp_path / "begun", tmp_path / "never")
    assert "in wait_for" in str(failed.value.__cause__)
    assert caplog.records == []  # it was not waited for again
    assert_nothing_is_left(processes, pids)


def test_closing_fails_a_call_that_is_under_way(tmp_path: Path):
    processes = started(1)
    pids = processes.pids
    failed: list[TrainError] = []

    def call() -> None:
        with pytest.raises(TrainError) as error:
            processes.call("wait_for", tmp_path / "begun", tmp_path / "never")
        failed.append(error.value)

    thread = threading.Thread(target=call)
    thread.start()
    until((tmp_path / "begun").exists)
    processes.close()
    thread.join()
    assert len(failed) == 1
    assert_nothing_is_left(processes, pids)


def test_what_cannot_be_made_is_said_as_it_was_said_there():
    with pytest.raises(ConfigError, match=r"trainer process [01] of 2, being made: there is no desk for clerk [01]"):
        TrainerProcesses(2, refuse, SAFETY_S)


def test_what_cannot_be_sent_is_refused():
    lock = threading.Lock()
    with pytest.raises(ConfigError, match=r"cannot be sent what makes their object"):
        TrainerProcesses(1, lambda peers: (peers, lock), SAFETY_S)
    with pytest.raises(ConfigError, match=r"train.processes must be 1 or more"):
        TrainerProcesses(0, Clerk, SAFETY_S)


DRIVER = """
import sys
from pathlib import Path
from tests.train.test_processes import started
from windrow.train import rooms
rooms.MEMORY = Path(sys.argv[3])  # where nobody else sweeps up
processes = started(1)
print(processes.pids[0], processes.room, flush=True)
processes.call("wait_for", Path(sys.argv[1]), Path(sys.argv[2]))
"""


def test_they_die_with_a_driver_that_is_killed_though_they_are_busy_and_the_next_one_sweeps_up(tmp_path: Path):
    places = [str(tmp_path / "begun"), str(tmp_path / "never"), str(tmp_path)]
    with subprocess.Popen([sys.executable, "-c", DRIVER, *places], stdout=subprocess.PIPE, text=True) as driver:
        try:
            assert driver.stdout is not None
            pid, room = driver.stdout.readline().split()
            until((tmp_path / "begun").exists)
            assert Path(room).is_dir()
        finally:
            driver.kill()
    until(lambda: not alive([int(pid)]))
    assert sweep(ROOM, tmp_path) == [Path(room)]
    assert not Path(room).exists()
