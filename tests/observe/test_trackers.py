"""Trackers get what was measured and can never stop a run, hold it up or fail it."""

import importlib.util
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from windrow.config import load
from windrow.errors import ConfigError
from windrow.observe.trackers import Occasion, TrackerConfig, Trackers, kinds, open_trackers
from windrow.observe.trackers.couriers import PATIENCE
from windrow.observe.trackers.kinds import PACKAGES
from windrow.types import Value

PROGRAM = Path(__file__).with_name("tracking.py")
SOON = 0.05
"""Seconds that are waited for what never comes."""
LONG = 60.0
"""Seconds that are waited for what comes."""


class Good:
    """Keeps what it gets."""

    def __init__(self) -> None:
        self.got: list[tuple[int, Mapping[str, float]]] = []
        self.settings: Mapping[str, object] = {}
        self.is_closed = False

    def describe(self, settings: Mapping[str, object]) -> None:
        self.settings = settings

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.got.append((step, metrics))

    def close(self) -> None:
        self.is_closed = True


class Raising(Good):
    """Raises in the steps that it is told."""

    def __init__(self, error: BaseException, when: Callable[[int], bool]) -> None:
        super().__init__()
        self.error = error
        self.when = when
        self.asked = 0

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.asked += 1
        if self.when(step):
            raise self.error
        super().log(step, metrics)


class Gated(Good):
    """Does each thing only when it is let through: it hangs, or is as slow as one likes."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.entered.release()
        self.gate.acquire(timeout=LONG)
        super().log(step, metrics)

    def open(self) -> None:
        self.gate.release(1_000_000)


@pytest.fixture
def gated() -> Iterator[Gated]:
    """One that is let go when the test is over."""
    tracker = Gated()
    yield tracker
    tracker.open()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_every_tracker_gets_every_value_in_order_and_is_closed():
    one, other = Good(), Good()
    trackers = Trackers({"one": lambda: one, "other": lambda: other})
    for step in range(50):
        trackers.log(step, {"loss": step / 4, "count": step})
    trackers.close(LONG)
    for tracker in (one, other):
        assert [step for step, _ in tracker.got] == [*range(50)]
        assert tracker.got[3] == (3, {"loss": 0.75, "count": 3.0})
        assert tracker.is_closed
    assert trackers.lost == {"one": 0, "other": 0}


def test_a_tracker_that_changes_what_it_gets_changes_nothing_for_others():
    class Vandal(Good):
        def log(self, step: int, metrics: Any) -> None:
            metrics.clear()

    good, measured = Good(), {"loss": 1.0}
    trackers = Trackers({"vandal": Vandal, "good": lambda: good})
    trackers.log(1, measured)
    trackers.close(LONG)
    assert (good.got, measured) == ([(1, {"loss": 1.0})], {"loss": 1.0})


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1), KeyboardInterrupt()], ids=repr)
def test_a_tracker_that_always_raises_is_dropped_and_the_others_go_on(
    error: BaseException, caplog: pytest.LogCaptureFixture
):
    bad, good = Raising(error, lambda step: True), Good()
    trackers = Trackers({"bad": lambda: bad, "good": lambda: good})
    for step in range(20):
        trackers.log(step, {})
    trackers.close(LONG)
    assert (bad.asked, bad.is_closed) == (PATIENCE, True)
    assert len(good.got) == 20
    assert trackers.lost == {"bad": 20, "good": 0}
    failed, dropped, told = warnings(caplog)
    assert failed.startswith(f"tracker bad failed, the run goes on: {type(error).__name__}")
    assert dropped == f"tracker bad failed {PATIENCE} times in a row and is dropped"
    assert told == "tracker bad has ended and did not get 20 values"


def test_a_tracker_that_raises_now_and_then_is_warned_about_once_and_kept(caplog: pytest.LogCaptureFixture):
    bad = Raising(OSError("network"), lambda step: step % 2 == 0)
    trackers = Trackers({"bad": lambda: bad})
    for step in range(40):
        trackers.log(step, {})
    trackers.close(LONG)
    assert [step for step, _ in bad.got] == [*range(1, 40, 2)]
    assert trackers.lost == {"bad": 20}
    assert len(warnings(caplog)) == 2, "the first failure, and the sum at the end"


def test_a_tracker_that_cannot_be_started_is_done_without(caplog: pytest.LogCaptureFixture):
    def begin() -> Good:
        raise RuntimeError("no key")

    trackers = Trackers({"bad": begin})
    for step in range(3):
        trackers.log(step, {})
    trackers.close(LONG)
    assert trackers.lost == {"bad": 3}
    assert warnings(caplog)[0] == "tracker bad cannot be started, the run goes on without it: RuntimeError: no key"


def test_a_tracker_that_hangs_does_not_hold_up_the_run(gated: Gated, caplog: pytest.LogCaptureFixture):
    trackers = Trackers({"hangs": lambda: gated}, room=10)
    trackers.log(0, {})
    gated.entered.acquire()  # it hangs with the first value
    for step in range(1, 31):
        trackers.log(step, {})
    trackers.close(SOON)
    assert gated.got == [], "it still hangs"
    assert trackers.lost == {"hangs": 31}
    assert warnings(caplog) == [
        "tracker hangs is too slow, values are lost; 10 wait",
        "tracker hangs did not come to its end and did not get 31 values",
    ]


def test_beside_a_tracker_that_hangs_the_others_get_everything(gated: Gated):
    last = threading.Event()

    class Waited(Good):
        def log(self, step: int, metrics: Mapping[str, float]) -> None:
            super().log(step, metrics)
            if step == 99:
                last.set()

    good = Waited()
    trackers = Trackers({"hangs": lambda: gated, "good": lambda: good})
    for step in range(100):
        trackers.log(step, {})
    assert last.wait(LONG)
    trackers.close(SOON)
    assert [step for step, _ in good.got] == [*range(100)]
    assert trackers.lost == {"hangs": 100, "good": 0}


def test_a_tracker_that_hangs_when_it_is_started_loses_everything_and_nothing_else():
    ever = threading.Event()

    def begin() -> Good:
        ever.wait()
        return Good()

    trackers = Trackers({"hangs": begin})
    trackers.log(1, {})
    trackers.close(SOON)
    assert trackers.lost == {"hangs": 1}
    ever.set()


def test_a_tracker_that_hangs_when_it_is_closed_is_left_alone(caplog: pytest.LogCaptureFixture):
    ever = threading.Event()

    class Stubborn(Good):
        def close(self) -> None:
            ever.wait()

    stubborn = Stubborn()
    trackers = Trackers({"stubborn": lambda: stubborn})
    trackers.log(1, {})
    trackers.close(SOON)
    assert "did not come to its end" in warnings(caplog)[-1]
    ever.set()


def test_a_tracker_that_fails_when_it_is_closed_is_warned_about(caplog: pytest.LogCaptureFixture):
    class Bad(Good):
        def close(self) -> None:
            raise OSError("gone")

    trackers = Trackers({"bad": Bad})
    trackers.close(LONG)
    assert warnings(caplog) == ["tracker bad failed when it was closed: OSError: gone"]


def test_a_slow_tracker_gets_the_newest_values_and_the_rest_are_counted(gated: Gated, caplog: pytest.LogCaptureFixture):
    trackers = Trackers({"slow": lambda: gated}, room=5)
    trackers.log(0, {})
    gated.entered.acquire()
    for step in range(1, 21):
        trackers.log(step, {})
    gated.open()
    trackers.close(LONG)
    assert [step for step, _ in gated.got] == [0, 16, 17, 18, 19, 20]
    assert trackers.lost == {"slow": 15}
    assert gated.is_closed
    assert len(warnings(caplog)) == 2, "that it is slow, and the sum at the end"


def test_closing_again_and_logging_afterwards_do_nothing(caplog: pytest.LogCaptureFixture):
    good = Good()
    trackers = Trackers({"good": lambda: good})
    trackers.close(LONG)
    trackers.log(1, {})
    trackers.close(LONG)
    trackers.close(LONG)
    assert good.got == []
    assert trackers.lost == {"good": 1}
    assert len(warnings(caplog)) <= 1


def test_every_tracker_is_told_the_settings_before_anything_else():
    class Ordered(Good):
        def log(self, step: int, metrics: Mapping[str, float]) -> None:
            assert self.settings == {"train.optimizer.lr": 0.1}
            super().log(step, metrics)

    one, other = Ordered(), Ordered()
    trackers = Trackers({"one": lambda: one, "other": lambda: other}, settings={"train.optimizer.lr": 0.1})
    trackers.log(1, {})
    trackers.close(LONG)
    assert (len(one.got), len(other.got)) == (1, 1)


def test_a_tracker_that_does_not_take_the_settings_gets_the_numbers(caplog: pytest.LogCaptureFixture):
    class Picky(Good):
        def describe(self, settings: Mapping[str, object]) -> None:
            raise ValueError("too many")

    picky = Picky()
    trackers = Trackers({"picky": lambda: picky}, settings={"steps": 3})
    trackers.log(1, {"a": 1.0})
    trackers.close(LONG)
    assert picky.got == [(1, {"a": 1.0})]
    assert warnings(caplog) == ["tracker picky did not take the settings, the run goes on: ValueError: too many"]


def test_tensorboard_shows_the_settings_by_their_dotted_names(tmp_path: Path):
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    settings = {"steps": 3, "train": {"optimizer": {"lr": 0.5, "betas": [0.9, 0.95]}}}
    open_trackers([TrackerConfig(kind="tensorboard")], tmp_path, None, settings).close(LONG)
    events = reading.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    text = events.Tensors("settings/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "| steps | 3 |" in text
    assert "| train.optimizer.lr | 0.5 |" in text
    assert "| train.optimizer.betas | [0.9, 0.95] |" in text


def test_mlflow_is_told_settings_in_pieces_and_never_those_that_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its server takes 100 at once, and refuses to change one; a stand-in for a package that need not be here."""
    client = MagicMock()
    client.get_run.return_value.data.params = {"known": "1"}
    there = {"mlflow.tracking": MagicMock(), "mlflow.entities": MagicMock()}
    there["mlflow.tracking"].MlflowClient.return_value = client
    there["mlflow.entities"].Param = lambda name, value: (name, value)
    monkeypatch.setattr(kinds, "_module", there.__getitem__)
    tracker = kinds.Mlflow(TrackerConfig(kind="mlflow"), Occasion(name="run", folder=tmp_path))
    tracker.describe({"known": 2, "long": "x" * 10_000, **{f"a:{number}": number for number in range(120)}})
    told = [call.kwargs["params"] for call in client.log_batch.call_args_list]
    assert [len(each) for each in told] == [100, 21]
    assert told[0][0] == ("long", "x" * kinds.Mlflow.LONGEST)
    assert told[0][1] == ("a_0", "0")


def test_no_trackers_are_fine(tmp_path: Path):
    trackers = open_trackers([], tmp_path)
    trackers.log(1, {"a": 1.0})
    trackers.close()
    assert trackers.lost == {}


@pytest.mark.parametrize("kind", PACKAGES)
def test_a_missing_package_is_an_error_at_the_start_that_names_the_extra(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(PACKAGES, kind, ("no_such_package",))
    with pytest.raises(ConfigError, match=rf"needs the package no_such_package.*pip install 'windrow\[{kind}\]'"):
        open_trackers([TrackerConfig(kind=kind)], tmp_path)


def test_two_of_a_kind_are_two(tmp_path: Path):
    configs = [TrackerConfig(kind="tensorboard", folder=str(tmp_path / name)) for name in ("a", "b")]
    trackers = open_trackers(configs, tmp_path / "demo-1")
    trackers.close(LONG)
    assert [*trackers.lost] == ["tensorboard", "tensorboard 2"]
    assert all((tmp_path / name / "demo-1").is_dir() for name in ("a", "b")), "each run in a folder of its name"


def test_trackio_has_a_place_of_its_own():
    with pytest.raises(ConfigError, match="folder 'here' cannot be set for trackio; set TRACKIO_DIR"):
        TrackerConfig(kind="trackio", folder="here")


class Settings(Value, frozen=True, kw_only=True, gc=True):
    trackers: list[TrackerConfig] = []


def test_trackers_are_configured_in_a_file(tmp_path: Path):
    (tmp_path / "run.yaml").write_text("trackers:\n- kind: wandb\n  arguments: {mode: offline, tags: [a, b]}\n")
    (found,) = load(tmp_path / "run.yaml", [], Settings).value.trackers
    assert found == TrackerConfig(kind="wandb", arguments={"mode": "offline", "tags": ["a", "b"]})
    (tmp_path / "run.yaml").write_text("trackers:\n- kind: wanb\n")
    with pytest.raises(ConfigError, match="did you mean wandb"):
        load(tmp_path / "run.yaml", [], Settings)


def tracked(kind: str, folder: Path) -> list[list[float]]:
    """Track a run with a real package, and read back what it has."""
    run = folder / "runs" / "demo-1"
    run.mkdir(parents=True)
    env = {**os.environ, "TRACKIO_DIR": str(folder / "trackio"), "HOME": str(folder), "WANDB_MODE": "offline"}
    command = [sys.executable, str(PROGRAM), kind, str(run)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, cwd=folder)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["lost"] == 0, done.stderr
    curve: list[list[float]] = told["curve"]
    return curve


def test_tensorboard_shows_a_resumed_run_as_one_curve(tmp_path: Path):
    assert tracked("tensorboard", tmp_path) == [[1, 1.0], [2, 0.5], [3, pytest.approx(1 / 3)]]


@pytest.mark.parametrize("kind", ["wandb", "mlflow", "trackio"])
def test_a_resumed_run_goes_on_under_its_name(kind: str, tmp_path: Path):
    if importlib.util.find_spec(kind) is None:
        pytest.skip(f"{kind} is not installed; pip install 'windrow[{kind}]'")
    assert tracked(kind, tmp_path) == [[1, 1.0], [2, 0.5], [2, 0.5], [3, pytest.approx(1 / 3)]]
