"""Checkpoints: whole or not at all, verified when loaded, the last and the best kept."""

import logging
import os
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.store.given import parts, steps_told

from windrow.errors import ConfigError, DataError, InternalError, TrainError
from windrow.store.checkpoints import MANIFEST, Checkpoints, Keep


@pytest.fixture
def checkpoints(memory: Path) -> Checkpoints:
    return Checkpoints(memory / "checkpoints")


def names(checkpoints: Checkpoints) -> list[str]:
    """All that is in the folder, hidden things too."""
    return sorted(path.name for path in checkpoints.folder.iterdir())


def test_what_is_loaded_is_what_was_saved(checkpoints: Checkpoints):
    checkpoints.save(7, parts(7), score=0.25, meta={"version": 7, "names": ["a", None, 1.5]})
    found = checkpoints.load(7)
    assert (found.step, found.score, found.meta) == (7, 0.25, {"version": 7, "names": ["a", None, 1.5]})
    assert found.parts == ["model", "scheduler", "trainer.pt"]
    assert found.path("trainer.pt").read_bytes() == b"7 7 7 "
    assert (found.path("model") / "nested" / "weights.bin").read_bytes() == b"7 " * 100
    assert found.size == 2 + 200 + 6 + 20


def test_nothing_saved_is_no_error_until_something_must_be_there(checkpoints: Checkpoints):
    assert (checkpoints.latest(), checkpoints.best(), checkpoints.steps()) == (None, None, [])
    with pytest.raises(ConfigError, match=r"has no checkpoint that is whole$"):
        checkpoints.load()


def test_the_latest_is_that_of_the_highest_step_and_the_best_that_of_the_highest_score(checkpoints: Checkpoints):
    for step, score in [(8, 0.5), (9, 0.9), (10, 0.9), (100, 0.1), (1000, None)]:
        checkpoints.save(step, parts(step), score=score, keep=True)
    assert checkpoints.load("latest").step == 1000
    assert checkpoints.load("best").step == 10, "of equals the newest"


def test_a_score_that_is_no_number_is_no_score(checkpoints: Checkpoints):
    checkpoints.save(1, parts(1), score=float("nan"))
    assert checkpoints.best() is None
    with pytest.raises(ConfigError, match=r"no checkpoint with a score that is whole; there are steps 1"):
        checkpoints.load("best")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # each example has a folder of its own in it
@given(
    scores=st.lists(st.none() | st.integers(0, 3), min_size=1, max_size=12),
    last=st.integers(1, 3),
    best=st.integers(0, 2),
)
def test_the_last_and_the_best_are_kept_and_nothing_else(scores: list[int | None], last: int, best: int, memory: Path):
    checkpoints = Checkpoints(Path(mkdtemp(dir=memory)), Keep(last=last, best=best))
    kept: list[tuple[int, int | None]] = []
    for step, score in enumerate(scores):
        checkpoints.save(step, {"scheduler": Path.touch}, score=score)
        kept.append((step, score))
        ranked = sorted((score, step) for step, score in kept if score is not None)
        wanted = {step for step, _ in kept[-last:]} | {step for _, step in ranked[max(0, len(ranked) - best) :]}
        kept = [entry for entry in kept if entry[0] in wanted]
        assert checkpoints.steps() == sorted(wanted)
    assert len(names(checkpoints)) == len(kept), "nothing else lies about"


def test_what_is_to_be_kept_is_never_removed(memory: Path):
    checkpoints = Checkpoints(memory, Keep(last=1, best=0))
    for step in range(5):
        checkpoints.save(step, parts(step), keep=step == 1)
    assert checkpoints.steps() == [1, 4]


def test_a_part_that_fails_leaves_no_trace_and_says_which(checkpoints: Checkpoints):
    checkpoints.save(1, parts(1))

    def fail(path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(TrainError, match=r"part 'trainer.pt' of a checkpoint cannot be saved.*No space left"):
        checkpoints.save(2, {**parts(2), "trainer.pt": fail})
    assert names(checkpoints) == ["step-00000001"]
    assert checkpoints.load().step == 1


def test_an_interrupt_leaves_no_trace_and_passes(checkpoints: Checkpoints):
    def interrupt(path: Path) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(1, {**parts(1), "scheduler": interrupt})
    assert names(checkpoints) == []


@pytest.mark.parametrize("write", [lambda path: None, Path.mkdir], ids=["nothing", "an empty folder"])
def test_a_part_that_writes_nothing_is_an_error(checkpoints: Checkpoints, write):
    with pytest.raises(TrainError, match="part 'model' of a checkpoint wrote nothing"):
        checkpoints.save(1, {"model": write})


def test_a_link_is_refused_because_what_it_stands_for_may_go(checkpoints: Checkpoints, tmp_path: Path):
    (tmp_path / "weights").write_bytes(b"w")

    def link(path: Path) -> None:
        path.mkdir()
        (path / "weights").symlink_to(tmp_path / "weights")

    with pytest.raises(TrainError, match="weights is none; copy what it stands for"):
        checkpoints.save(1, {"model": link})


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", ".hidden", MANIFEST])
def test_a_part_has_a_plain_name(checkpoints: Checkpoints, name: str):
    with pytest.raises(InternalError, match="cannot be called"):
        checkpoints.save(1, {name: Path.touch})


def test_meta_that_json_does_not_have_is_an_error_before_anything_is_kept(checkpoints: Checkpoints):
    with pytest.raises(TrainError, match="checkpoint of step 1 cannot be saved"):
        checkpoints.save(1, parts(1), meta={"x": object()})
    assert names(checkpoints) == []


def files_of(checkpoints: Checkpoints, step: int) -> list[Path]:
    folder = checkpoints.load(step).folder
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("how", ["changed", "shorter", "gone"])
def test_damage_to_any_file_is_seen_and_the_one_before_is_taken(
    checkpoints: Checkpoints, number: int, how: str, caplog: pytest.LogCaptureFixture
):
    checkpoints.save(1, parts(1))
    checkpoints.save(2, parts(2))
    file = sorted(files_of(checkpoints, 2))[number]
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    match how:
        case "changed":
            file.write_bytes(data)
        case "shorter":
            file.write_bytes(data[:-1])
        case _:
            file.unlink()
    latest = checkpoints.latest()
    assert latest is not None
    assert (latest.step, steps_told(latest)) == (1, {1})
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "step-00000002 is damaged and skipped" in record.getMessage()
    assert file.name in record.getMessage()
    with pytest.raises(DataError, match=r"step-00000002 is damaged: .*; there are steps 1"):
        checkpoints.load(2)


def test_every_bit_of_the_list_counts(checkpoints: Checkpoints):
    checkpoints.save(1, parts(1), score=0.5, meta={"a": 1})
    path = checkpoints.load(1).folder / MANIFEST
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert checkpoints.latest() is None, f"byte {place}: {data[place : place + 1]!r}"
    path.write_bytes(data)
    assert checkpoints.latest() is not None


def test_the_best_that_is_damaged_gives_way_to_the_second_best(checkpoints: Checkpoints):
    for step, score in [(1, 0.3), (2, 0.9), (3, 0.1)]:
        checkpoints.save(step, parts(step), score=score, keep=True)
    (checkpoints.load(2).path("scheduler")).write_bytes(b"9 " * 10)
    assert checkpoints.load("best").step == 1


def test_what_is_damaged_is_not_counted_among_the_last_nor_removed(memory: Path):
    checkpoints = Checkpoints(memory, Keep(last=2, best=0))
    for step in (1, 2):
        checkpoints.save(step, parts(step))
    checkpoints.load(2).path("scheduler").unlink()
    checkpoints.save(3, parts(3))
    assert checkpoints.steps() == [1, 3]
    assert "step-00000002" in names(checkpoints)


def test_a_step_can_be_saved_again_and_the_newer_one_counts(memory: Path):
    checkpoints = Checkpoints(memory, Keep(last=2, best=1))
    checkpoints.save(1, parts(1))
    for score in (0.9, 0.2, 0.1):
        checkpoints.save(2, parts(2), score=score)
    found = checkpoints.load(2)
    assert found.score == 0.1
    assert checkpoints.steps() == [1, 2]
    assert len(names(checkpoints)) == 2, "of each step one"
    assert checkpoints.load("best").score == 0.1, "what was saved again is gone"


def test_how_good_one_is_can_be_said_later_and_decides_which_stays(memory: Path):
    checkpoints = Checkpoints(memory, Keep(last=1, best=1))
    checkpoints.save(1, parts(1), score=0.5, meta={"seconds": 3})
    checkpoints.save(2, parts(2), meta={"seconds": 6})
    assert checkpoints.amend(2, score=0.25, meta={"curve": [1]})
    assert [(each.step, each.score) for each in checkpoints.known()] == [(1, 0.5), (2, 0.25)]
    assert checkpoints.load(2).meta == {"seconds": 6, "curve": [1]}
    assert checkpoints.amend(2, score=0.75, meta={})
    assert checkpoints.steps() == [2]
    assert not checkpoints.amend(1, score=1.0, meta={})
    assert checkpoints.load("best").fault() is None


def test_one_whose_score_is_awaited_stays_until_it_comes(memory: Path):
    checkpoints = Checkpoints(memory, Keep(last=1, best=1))
    checkpoints.awaited.add(1)
    for step in (1, 2, 3):
        checkpoints.save(step, parts(step))
    assert checkpoints.steps() == [1, 3]
    checkpoints.amend(1, score=0.5, meta={})
    checkpoints.awaited.discard(1)
    checkpoints.save(4, parts(4))
    assert checkpoints.steps() == [1, 4]


def test_a_step_that_is_not_there_is_named_with_those_that_are(checkpoints: Checkpoints):
    checkpoints.save(3, parts(3))
    with pytest.raises(ConfigError, match=r"has no checkpoint of step 4; there are steps 3"):
        checkpoints.load(4)


def test_a_part_that_is_not_there_is_named_with_those_that_are(checkpoints: Checkpoints):
    found = checkpoints.save(3, parts(3))
    with pytest.raises(DataError, match=r"has no part 'critic'; it has model, scheduler, trainer.pt"):
        found.path("critic")


def test_later_ones_can_be_set_aside_without_being_lost(checkpoints: Checkpoints):
    for step in (1, 2, 3):
        checkpoints.save(step, parts(step), keep=True)
    checkpoints.set_aside_after(1)
    assert checkpoints.steps() == [1]
    checkpoints.save(2, parts(2), keep=True)
    checkpoints.set_aside_after(1)
    assert names(checkpoints) == [
        "aside-step-00000002",
        "aside-step-00000002-2",
        "aside-step-00000003",
        "step-00000001",
    ]


def test_a_checkpoint_of_another_format_is_refused_with_its_format(checkpoints: Checkpoints):
    folder = checkpoints.save(1, parts(1)).folder
    text = (folder / MANIFEST).read_text(encoding="utf-8")
    (folder / MANIFEST).write_text(text.replace('"format":1', '"format":9'), encoding="utf-8")
    with pytest.raises(DataError, match="it has format 9, this version reads format 1"):
        checkpoints.load(1)


def test_everything_is_on_the_disk_before_it_gets_its_name(checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch):
    """No process can be made to lose power here, so the order of what is asked of the disk is looked at."""
    synced: set[int] = set()
    unsynced: list[str] = []
    real_sync, real_rename = os.fsync, os.rename

    def sync(handle: int) -> None:
        real_sync(handle)
        synced.add(os.fstat(handle).st_ino)

    def rename(source: Path, target: Path) -> None:
        everything = [source, *source.rglob("*")]
        unsynced.extend(path.name for path in everything if path.stat().st_ino not in synced)
        synced.clear()
        real_rename(source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "rename", rename)
    checkpoints.save(1, parts(1))
    assert unsynced == []
    assert synced == {checkpoints.folder.stat().st_ino}, "and then the name itself"
