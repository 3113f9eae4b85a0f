"""The run folder: everything that a run leaves behind, in one place.

Promises: a run folder appears whole, under a name that nobody else has, and is written by one process at a time;
reading needs no permission from whoever writes. What is in it is listed in `docs/runs.md`. When a run goes on from a
checkpoint, whatever it had written about later steps is taken away first, so that every step is told once.

What a configuration means, what is measured and what is saved is not known here.
"""

import logging
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from windrow.errors import ConfigError, DataError, Refused
from windrow.nearest import nearest
from windrow.sources.recordings import Recorder, Recording
from windrow.store.checkpoints import Checkpoints, Keep
from windrow.store.durable import sync, sync_all, write_whole
from windrow.store.lock import Lock, Owner, owner_of
from windrow.store.metrics import MetricsFile
from windrow.store.versions import Versions, changed, versions
from windrow.trajectory import Trajectory
from windrow.types import Value, from_json, to_json

log = logging.getLogger(__name__)

FORMAT = 1
"""Raised whenever an older run could no longer be read."""
ABOUT = "run.json"
CONFIG = "config.yaml"
ORIGINS = "origins.json"
VERSIONS = "versions.json"
METRICS = "metrics.jsonl"
LOG = "console.log"
RESULT = "result.json"
CHECKPOINTS = "checkpoints"
TRAJECTORIES = "trajectories"
LOCK = "lock"

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
RECORDING = re.compile(r"step-(\d{8,})\.rec")
LOG_LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"

State = Literal["running", "finished", "stopped"]
"""Somebody writes it; it has a result; neither: it can be gone on with."""


class About(Value, frozen=True, kw_only=True):
    """What tells a run folder from any other."""

    format: int
    name: str
    created_at: float
    command: list[str]


class RunFolder:
    """One run."""

    def __init__(self, path: Path, about: About, lock: Lock | None, keep: Keep | None) -> None:
        self.path = path
        self.about = about
        self._lock = lock
        self.metrics = MetricsFile(path / METRICS, is_ours=lock is not None)
        self.checkpoints = Checkpoints(path / CHECKPOINTS, keep)

    # taking one

    @classmethod
    def create(
        cls,
        root: Path | str,
        name: str,
        config_text: str,
        origins: Mapping[str, str] | None = None,
        *,
        keep: Keep | None = None,
    ) -> Self:
        """Begin a run in a folder of its own below `root`, called by `name` and the time."""
        if not NAME.fullmatch(name):
            raise ConfigError(f"a run cannot be called {name!r}; use letters, digits, - . _")
        root = Path(root)
        root.mkdir(parents=True, exist_ok=True)
        about = About(format=FORMAT, name=name, created_at=round(time.time(), 3), command=sys.argv)
        beside = Path(tempfile.mkdtemp(prefix=f".{name}-", suffix=".new", dir=root))
        lock = None
        try:
            beside.chmod(0o755)
            lock = Lock(beside / LOCK, f"run {name}")
            _furnish(beside, about, config_text, origins or {})
            path = beside.rename(_claimed(root / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"))
        except BaseException:
            if lock is not None:
                lock.close()
            shutil.rmtree(beside, ignore_errors=True)
            raise
        sync(root)
        return cls(path, about, lock, keep)

    @classmethod
    def open(cls, path: Path | str, *, keep: Keep | None = None) -> Self:
        """Take a run to go on with it; refused while another process writes it."""
        path = Path(path)
        about = _about(path)
        run = cls(path, about, Lock(path / LOCK, f"run {path}"), keep)
        run.checkpoints.sweep()
        different = changed(run.versions, versions())
        if different:
            log.warning("run %s goes on with other software: %s", path, "; ".join(different))
        return run

    @classmethod
    def read(cls, path: Path | str) -> Self:
        """Look at a run, whoever writes it."""
        path = Path(path)
        return cls(path, _about(path), None, None)

    def close(self) -> None:
        """Give it back; a second time does nothing."""
        if self._lock is not None:
            self.metrics.sync()
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # what is in it

    @property
    def config_file(self) -> Path:
        """The effective configuration."""
        return self.path / CONFIG

    @property
    def origins(self) -> dict[str, str]:
        """Where each setting came from."""
        return self._json(ORIGINS, dict[str, str])

    @property
    def versions(self) -> Versions:
        """The software that began it."""
        return self._json(VERSIONS, dict[str, str])

    @property
    def log_file(self) -> Path:
        """What was said."""
        return self.path / LOG

    @property
    def result(self) -> dict[str, Any] | None:
        """What came out; None if it has not come to its end."""
        return self._json(RESULT, dict[str, Any]) if (self.path / RESULT).exists() else None

    @property
    def owner(self) -> Owner | None:
        """Who writes it; None if nobody does."""
        return owner_of(self.path / LOCK)

    @property
    def state(self) -> State:
        if self.owner is not None:
            return "running"
        return "finished" if (self.path / RESULT).exists() else "stopped"

    def recording(self, step: int) -> Recording:
        """The trajectories of a step that were kept; an error if none were."""
        return Recording(self._recording_path(step))

    def recorded_steps(self) -> list[int]:
        """All and only the steps of which trajectories were kept."""
        return sorted(step for step, _ in self._recordings())

    # writing it

    def write_result(self, result: object) -> None:
        """What came out, instead of what came out before; anything that JSON has."""
        self._check_ours()
        write_whole(self.path / RESULT, to_json(result) + b"\n")

    def record(self, step: int, trajectories: Iterable[Trajectory]) -> None:
        """Keep trajectories of a step, behind those that it has."""
        self._check_ours()
        with Recorder(self._recording_path(step)) as out:
            for trajectory in trajectories:
                out.write(trajectory)

    def configure(self, config_text: str, origins: Mapping[str, str]) -> None:
        """It goes on with other settings than it had."""
        self._check_ours()
        write_whole(self.path / CONFIG, config_text.encode())
        write_whole(self.path / ORIGINS, to_json(dict(origins)) + b"\n")

    def rewind(self, step: int | None) -> None:
        """The run goes on after this step: what it wrote about later ones is removed, their checkpoints set aside.

        None: it begins anew.
        """
        self._check_ours()
        last = -1 if step is None else step
        (self.path / RESULT).unlink(missing_ok=True)
        lines = self.metrics.cut_after(last)
        for recorded, path in [*self._recordings()]:
            if recorded > last:
                path.unlink()
        moved = self.checkpoints.set_aside_after(last)
        how = "begins anew" if step is None else f"goes on after step {step}"
        log.info("run %s %s; %d later lines of metrics removed", self.path, how, lines)
        if moved:
            log.warning("later checkpoints of run %s do not count any more: %s", self.path, ", ".join(map(str, moved)))

    @contextmanager
    def logged(self, level: int = logging.INFO) -> Iterator[None]:
        """What Windrow says is written to the log of the run as well."""
        self._check_ours()
        handler = logging.FileHandler(self.log_file, encoding="utf-8")
        handler.setLevel(level)
        handler.setFormatter(logging.Formatter(LOG_LINE))
        ours = logging.getLogger("windrow")
        before = ours.level
        ours.addHandler(handler)
        ours.setLevel(min(level, ours.getEffectiveLevel()))
        try:
            yield
        finally:
            ours.setLevel(before)
            ours.removeHandler(handler)
            handler.close()

    def _check_ours(self) -> None:
        if self._lock is None:
            raise Refused(f"run {self.path} is open for reading alone; take it with RunFolder.open")

    def _json(self, name: str, kind: "type[dict[str, Any]]") -> "dict[str, Any]":
        try:
            return from_json((self.path / name).read_bytes(), kind)
        except (OSError, ValueError) as error:
            raise DataError(f"{self.path / name} cannot be read: {error}") from error

    def _recording_path(self, step: int) -> Path:
        return self.path / TRAJECTORIES / f"step-{step:08d}.rec"

    def _recordings(self) -> Iterator[tuple[int, Path]]:
        folder = self.path / TRAJECTORIES
        for path in folder.iterdir() if folder.is_dir() else ():
            found = RECORDING.fullmatch(path.name)
            if found is not None:
                yield int(found[1]), path


def find_run(text: str, root: Path | str = "runs") -> Path:
    """The run that is meant by a path, or by its name below `root`."""
    for path in (Path(text), Path(root) / text):
        if path.exists():
            return path
    raise _no_run(Path(text), Path(root))


def runs_in(root: Path) -> list[Path]:
    """All and only the run folders directly in a folder, in the order of their names."""
    return sorted(path.parent for path in root.glob(f"*/{ABOUT}") if not path.parent.name.startswith("."))


def _about(path: Path) -> About:
    if not path.exists():
        raise _no_run(path, path.parent)
    try:
        about = from_json((path / ABOUT).read_bytes(), About)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConfigError(f"{path} is no run folder, it has no {ABOUT}; runs are made by windrow train") from error
    except ValueError as error:
        raise DataError(f"{path / ABOUT} cannot be read: {error}") from error
    if about.format != FORMAT:
        raise ConfigError(f"run {path} has format {about.format}; this version reads format {FORMAT}")
    return about


def _no_run(path: Path, root: Path) -> ConfigError:
    known = {run.name: run for run in runs_in(root)}
    near = nearest(path.name, known)
    if near is not None:
        return ConfigError(f"there is no run {path}; did you mean {known[near]}?")
    newest = max(known.values(), key=lambda run: run.stat().st_mtime, default=None)
    return ConfigError(f"there is no run {path}" + (f"; the newest in {root} is {newest.name}" if newest else ""))


def _furnish(folder: Path, about: About, config_text: str, origins: Mapping[str, str]) -> None:
    """What a run has from its beginning."""
    (folder / ABOUT).write_bytes(to_json(about) + b"\n")
    (folder / CONFIG).write_text(config_text, encoding="utf-8")
    (folder / ORIGINS).write_bytes(to_json(dict(origins)) + b"\n")
    (folder / VERSIONS).write_bytes(to_json(versions()) + b"\n")
    (folder / CHECKPOINTS).mkdir()
    sync_all(folder)


def _claimed(path: Path) -> Path:
    """An empty folder of this name, with a number behind it if it is taken; a run takes its place."""
    free, number = path, 2
    while True:
        try:
            free.mkdir()
        except FileExistsError:
            free, number = path.with_name(f"{path.name}-{number}"), number + 1
        else:
            return free
