"""Joining a cluster and starting one: what is in the way is told, in bounded time."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from windrow.cluster.ray import addresses, session
from windrow.errors import ConfigError

pytestmark = pytest.mark.ray

STARTED_HERE = """
from windrow.cluster.ray.session import RayConfig, connect
with connect(RayConfig(cpus=1, objects_mb=128), devices=1) as made:
    print(made.started, made.address)
"""
MISMATCH = RuntimeError("Version mismatch: the cluster was started with:\n    Ray: 1.0\n    Python: 2.7\n")


@pytest.fixture
def deaf() -> Iterator[str]:
    """The address of something that takes connections and says nothing."""
    with socket.socket() as listener:
        listener.bind(("0.0.0.0", 0))  # noqa: S104 -- Ray looks at the address of this machine, not at 127.0.0.1
        listener.listen()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_without_an_address_a_cluster_is_started_whatever_the_environment_says():
    done = subprocess.run(
        [sys.executable, "-c", STARTED_HERE],
        env=os.environ | {"RAY_ADDRESS": "127.0.0.1:1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("True ")
    assert "127.0.0.1:1\n" not in done.stdout


def test_what_is_no_ray_is_found_out_in_bounded_time(deaf: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(addresses, "ANSWER_S", 5.0)
    silent = f"whatever listens at {deaf} has not answered like Ray within 5 s"
    with pytest.raises(
        ConfigError, match=f"no Ray cluster answers at '{deaf}': {silent}; .*leave ray.address out"
    ) as told:
        session._join(deaf)
    assert isinstance(told.value.__cause__, TimeoutError)


def test_auto_is_bounded_too(deaf: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(addresses, "ANSWER_S", 5.0)
    monkeypatch.setenv("RAY_ADDRESS", deaf)
    with pytest.raises(ConfigError, match=f"no Ray cluster answers at 'auto': .*RAY_ADDRESS is '{deaf}'"):
        session._join("auto")
    monkeypatch.setenv("RAY_ADDRESS", "ray://somewhere:1")
    with pytest.raises(ConfigError, match="no Ray cluster answers at 'auto': Invalid address format"):
        session._join("auto")


DOCTOR = """
import sys
from windrow.cli.main import main
from windrow.cluster.ray import addresses
addresses.ANSWER_S = 2.0
sys.exit(main(["doctor", "--address", sys.argv[1]]))
"""


def test_doctor_says_so_in_less_than_a_minute(deaf: str):
    """Here it waits less for an answer; what it waits otherwise, and the rest of it, stay below the minute together."""
    assert addresses.KNOCK_S + addresses.ANSWER_S < 30
    done = subprocess.run(
        [sys.executable, "-c", DOCTOR, deaf],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "has not answered like Ray" in " ".join(done.stdout.split())


def test_a_cluster_that_answers_is_found_under_its_own_address(ray_session: session.Session):
    assert addresses.knock(ray_session.address) == ray_session.address


LATE = Exception("The current node timed out during startup. This could happen because\nsome of the raylets failed")
"""What Ray raises if it is not there in time."""


def test_a_cluster_that_does_not_start_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch):
    import ray

    def refuse(**_: object) -> None:
        raise LATE

    monkeypatch.setattr(ray, "init", refuse)
    said = "Ray cannot be started here with ray.objects_mb 512: The current node timed out .* windrow doctor looks"
    with pytest.raises(ConfigError, match=said) as found:
        session._start(session.RayConfig(), devices=1)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("error", [MISMATCH, ValueError("no such node"), ConnectionError("gone"), LATE])
def test_a_cluster_that_cannot_be_joined_is_told_with_the_way_out(error: Exception, monkeypatch: pytest.MonkeyPatch):
    import ray

    def refuse(**_: object) -> None:
        raise error

    monkeypatch.setattr(session, "knock", lambda _: "10.0.0.1:6379")
    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(
        ConfigError, match=r"the Ray cluster at 10.0.0.1:6379 cannot be joined: .*the same Python and Ray"
    ):
        session._join("auto")


def test_what_ray_has_to_say_of_processes_that_died_does_not_reach_the_console(
    ray_session: session.Session, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    from ray._private import worker

    def say(text: str) -> None:
        worker.print_to_stdstream({"lines": [text], "pid": "raylet", "is_err": False}, ignore_prefix=False)

    say("a worker died")
    assert capfd.readouterr() == ("", "")
    assert ray_session.logs.is_dir()
    monkeypatch.setattr(worker, "_worker_logs_enabled", True)
    say("another one hangs")  # the same again would be held back
    assert "another one hangs" in capfd.readouterr().out  # so that is how it would have come
