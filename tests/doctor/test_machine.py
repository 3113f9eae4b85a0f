"""What is said about a machine, from numbers."""

import resource
import socket

import pytest

from windrow.doctor import machine
from windrow.doctor.findings import Finding


@pytest.mark.parametrize(
    ("finding", "state"),
    [
        (machine.cores(2), "ok"),
        (machine.cores(1), "warn"),
        (machine.memory(8e9), "ok"),
        (machine.memory(1e9), "warn"),
        (machine.memory(1e8), "bad"),
        (machine.memory(None), "warn"),
        (machine.shared_memory(4e9), "ok"),
        (machine.shared_memory(64 * 2**20), "warn"),  # what Docker gives
        (machine.shared_memory(1e6), "bad"),
        (machine.shared_memory(None), "warn"),
        (machine.open_files(1024), "warn"),
        (machine.open_files(128), "bad"),
        (machine.open_files(resource.RLIM_INFINITY), "ok"),
        (machine.processes(65536), "ok"),
        (machine.ports([]), "ok"),
        (machine.ports([6379]), "warn"),
        (machine.clock(1000.0, 1000.0), "ok"),
        (machine.clock(0.0, 1e9), "bad"),
    ],
)
def test_a_state_follows_from_the_number_and_comes_with_advice(finding: Finding, state: str):
    assert finding.state == state
    assert (finding.advice != "") == (state != "ok")


def test_a_port_that_somebody_listens_on_is_taken():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        assert not machine.is_free(other.getsockname()[1])


def test_everything_is_looked_at_here():
    names = [finding.name for finding in machine.findings()]
    assert names == ["cores", "memory", "shared memory", "open files", "processes", "ports", "clock"]
