"""What holds for every test."""

import gc
import os
import signal
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from tests.isolation.kit import Born

    from windrow.cluster.ray.session import Session

RAY_CPUS = 16
"""Of the tests' Ray cluster: more than the machine has, because most hosts wait most of the time."""

# a busy machine is no failure; and no dice, though examples do change with the constants of the modules that are loaded
settings.register_profile(
    "windrow", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("windrow")

# before torch is loaded: what waits for the other threads of a sum burns a core, and every worker of xdist has one
os.environ.setdefault("OMP_NUM_THREADS", "1")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a shell lets what it runs in the background ignore Ctrl-C, and so would every program that a test interrupts
    signal.signal(signal.SIGINT, signal.default_int_handler)


class AtOnce:
    """Names a test at the moment when it fails: a log of which only a part is kept still says which one it was."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")  # none in a worker of xdist
        if report.failed and terminal is not None:
            terminal.write_line(f"\nFAILED {report.nodeid} ({report.when})", red=True)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(AtOnce(config), "at once")


def pytest_collection_finish() -> None:
    """What is there before the first test is no garbage, and not looked through in each collection at a test's end."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def born() -> "Born":
    """Asks for the processes that were born since the test began.

    Others may be there for good: the resource tracker of `multiprocessing` is, once a test has used a pool of it.
    """
    from tests.isolation.kit import born_since, descendants  # not for those who never ask

    return partial(born_since, descendants(os.getpid()))


@pytest.fixture(scope="session")
def ray_session() -> "Iterator[Session]":
    """A Ray cluster on this machine, for all tests that are marked `ray`."""
    from windrow.cluster.ray.session import RayConfig, connect

    with connect(RayConfig(cpus=RAY_CPUS), devices=4) as session:
        yield session
