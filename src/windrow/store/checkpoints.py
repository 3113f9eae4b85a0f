"""Checkpoints: everything that a run needs to go on, saved whole or not at all.

Promises: a save that is broken off at any moment, by an error, a signal or a loss of power, leaves the checkpoints
that were there before as they were, and is never taken for a whole one: its parts are written into a folder beside,
which gets its name only when everything in it and the list of it are on the disk. What is loaded has been compared
with that list by its checksums. Old ones are removed only after the new one is whole, the best never, nor one whose
score is still awaited. How good one is may be said later: its list is replaced then, by a whole one.

One process saves at a time; the lock of the run sees to that. What the parts contain is not known here.
"""

import logging
import math
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

from windrow.core.settings import Count, Natural
from windrow.errors import ConfigError, DataError, InternalError, TrainError, blame
from windrow.store.durable import digest_of, entries, sync, sync_all, write_synced, write_whole
from windrow.types import Meta, Value, but, from_json, to_json

log = logging.getLogger(__name__)

FORMAT = 1
"""Raised whenever an older checkpoint could no longer be read."""
MANIFEST = "manifest.json"
NAME = re.compile(r"step-(\d{8,})(?:\.(\d+))?")
PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
SAVING = ".saving-"
GONE = ".gone-"
ASIDE = "aside-"

Which = int | Literal["latest", "best"]
"""A checkpoint by its step, or by what it is among the others."""
Write = Callable[[Path], object]
"""Makes a file or a folder of this name; what it returns does not matter."""


class Keep(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which checkpoints stay when a new one is saved."""

    last: Annotated[Count, Meta(description="so many of the newest")] = 2
    best: Annotated[Natural, Meta(description="so many with the highest scores, besides")] = 1


class File(Value, frozen=True, array_like=True):
    """What a file must be."""

    size: int
    sha256: str


class Manifest(Value, frozen=True, kw_only=True, gc=True):
    """The list of a checkpoint; written last."""

    format: int
    step: int
    score: float | None
    is_kept: bool
    """It is never removed."""
    meta: dict[str, Any]  # whatever JSON has; the caller's
    files: dict[str, File] = {}
    digest: str = ""
    """Of all the above."""


class Checkpoint:
    """One that is whole."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self.step = manifest.step
        self.score = manifest.score
        """Higher is better; None if nobody said."""
        self.is_kept = manifest.is_kept
        self.meta = manifest.meta
        self._files = manifest.files

    def __repr__(self) -> str:
        return f"Checkpoint({str(self.folder)!r})"

    @property
    def parts(self) -> list[str]:
        """All and only their names."""
        return sorted({name.partition("/")[0] for name in self._files})

    def path(self, part: str) -> Path:
        """The file or folder of a part."""
        if part not in self.parts:
            raise DataError(f"checkpoint {self.folder} has no part {part!r}; it has {', '.join(self.parts)}")
        return self.folder / part

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return sum(file.size for file in self._files.values())

    def fault(self, *, content: bool = True) -> str | None:
        """What is wrong with it; None if nothing is. Without `content` only sizes are looked at."""
        for name, file in self._files.items():
            path = self.folder / name
            try:
                size = path.stat().st_size
                if size != file.size:
                    return f"{name} has {size} bytes instead of {file.size}"
                if content and digest_of(path) != file.sha256:
                    return f"{name} is not what was saved"
            except OSError as error:
                return f"{name}: {(error.strerror or 'it cannot be read').lower()}"
        return None


class Checkpoints:
    """All checkpoints of a run, by step."""

    def __init__(self, folder: Path, keep: Keep | None = None) -> None:
        self.folder = folder
        self.keep = keep or Keep()
        self.awaited: set[int] = set()
        """Steps whose scores are still to come; their checkpoints stay until then."""
        self._changing = threading.Lock()  # held by whoever gives names, replaces lists or removes

    # saving

    def save(
        self,
        step: int,
        parts: Mapping[str, Write],
        *,
        score: float | None = None,
        meta: Mapping[str, Any] | None = None,
        keep: bool = False,
    ) -> Checkpoint:
        """Save all parts under a step, then remove what need not be kept.

        Each part is told the path that is its own, where nothing is yet. With `keep` it stays for ever.
        """
        _check_parts(step, parts)
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._changing:
            self.sweep()
        beside = self.folder / f"{SAVING}{step}-{os.getpid()}"
        head = Manifest(format=FORMAT, step=step, score=_finite(score), is_kept=keep, meta=dict(meta or {}))
        try:
            with blame(TrainError, f"checkpoint of step {step} cannot be saved, those before it are whole"):
                manifest = but(head, files=_written(beside, parts))
                write_synced(beside / MANIFEST, _sealed(manifest))
                sync_all(beside)
                with self._changing:
                    saved = self._publish(beside, step)
        except BaseException:
            shutil.rmtree(beside, ignore_errors=True)
            raise
        with self._changing:
            self._retire()
        return Checkpoint(saved, manifest)

    def amend(self, step: int, *, score: float | None, meta: Mapping[str, Any]) -> bool:
        """Say afterwards how good the checkpoint of a step is, and more about it; false if there is none any more.

        What need not be kept by the new score is removed.
        """
        with self._changing:
            found = [checkpoint for checkpoint in self.known() if checkpoint.step == step]
            if not found:
                return False
            old = found[-1].manifest
            with blame(TrainError, f"the score of the checkpoint of step {step} cannot be written; it stays as it was"):
                new = but(old, score=_finite(score), meta={**old.meta, **meta})
                write_whole(found[-1].folder / MANIFEST, _sealed(new))
            self._retire()
        return True

    def sweep(self) -> None:
        """Remove what saves and removals that were broken off have left."""
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            if path.name.startswith((SAVING, GONE)):
                shutil.rmtree(path, ignore_errors=True)

    def set_aside_after(self, step: int) -> list[Path]:
        """Checkpoints of later steps no longer count, because the run goes on from this one; where they are now."""
        later = [path for path in self._folders() if _step_of(path) > step]
        moved = [path.rename(_free_name(self.folder / f"{ASIDE}{path.name}")) for path in later]
        if moved:
            sync(self.folder)
        return moved

    def _publish(self, beside: Path, step: int) -> Path:
        """Give it its name; a step that was saved before gets a number behind it, so that nothing is written over."""
        last = max((_place(path)[1] for path in self._folders() if _step_of(path) == step), default=0)
        saved = beside.rename(self.folder / (f"step-{step:08d}" + (f".{last + 1}" if last else "")))
        sync(self.folder)
        return saved

    def _retire(self) -> None:
        """Remove what is not among the last, the best, the awaited or the kept; what is damaged is left alone."""
        found = [*self.known()]
        by_step = {checkpoint.step: checkpoint for checkpoint in found}  # of several of one step the newest
        scored = [checkpoint for checkpoint in by_step.values() if checkpoint.score is not None]
        best = sorted(scored, key=_by_score, reverse=True)[: self.keep.best]
        wanted = {*[*by_step][-self.keep.last :], *(checkpoint.step for checkpoint in best), *self.awaited}
        for checkpoint in found:
            is_newest = by_step[checkpoint.step] is checkpoint
            if not checkpoint.is_kept and not (is_newest and checkpoint.step in wanted):
                self._remove(checkpoint.folder)

    def _remove(self, folder: Path) -> None:
        """It disappears at once, whatever happens while its files are deleted; a failure costs only space."""
        try:
            shutil.rmtree(folder.rename(self.folder / f"{GONE}{folder.name}-{os.getpid()}"))
        except OSError as error:
            log.warning("old checkpoint %s cannot be removed: %s", folder, error.strerror)

    # loading

    def known(self) -> Iterator[Checkpoint]:
        """All whose list and sizes are right, oldest first; their content is not compared."""
        for path in self._folders():
            checkpoint = _opened(path)
            if isinstance(checkpoint, Checkpoint) and checkpoint.fault(content=False) is None:
                yield checkpoint

    def steps(self) -> list[int]:
        """Of all of these, each once."""
        return sorted({checkpoint.step for checkpoint in self.known()})

    def latest(self) -> Checkpoint | None:
        """The newest that is whole; None if there is none. Damaged ones are skipped with a warning."""
        return self._first_whole([*reversed(self._folders())])

    def best(self) -> Checkpoint | None:
        """The one with the highest score that is whole, of equals the newest; None if none has a score."""
        scored = [checkpoint for checkpoint in self.known() if checkpoint.score is not None]
        return self._first_whole([checkpoint.folder for checkpoint in sorted(scored, key=_by_score, reverse=True)])

    def load(self, which: Which = "latest") -> Checkpoint:
        """One that must be there; what is damaged is refused."""
        if isinstance(which, int):
            return self._of_step(which)
        found = self.latest() if which == "latest" else self.best()
        if found is None:
            what = "no checkpoint" if which == "latest" else "no checkpoint with a score"
            raise ConfigError(f"{self.folder} has {what} that is whole{self._what_there_is()}")
        return found

    def _of_step(self, step: int) -> Checkpoint:
        folders = [path for path in self._folders() if _step_of(path) == step]
        if not folders:
            raise ConfigError(f"{self.folder} has no checkpoint of step {step}{self._what_there_is()}")
        found = _opened(folders[-1])
        fault = found if isinstance(found, str) else found.fault()
        if isinstance(found, str) or fault is not None:
            raise DataError(f"checkpoint {folders[-1]} is damaged: {fault}{self._what_there_is(but_step=step)}")
        return found

    def _first_whole(self, folders: list[Path]) -> Checkpoint | None:
        for path in folders:
            found = _opened(path)
            fault = found if isinstance(found, str) else found.fault()
            if isinstance(found, Checkpoint) and fault is None:
                return found
            log.warning("checkpoint %s is damaged and skipped: %s", path, fault)
        return None

    def _folders(self) -> list[Path]:
        """All and only those that have the name of a checkpoint, oldest first."""
        found = self.folder.iterdir() if self.folder.is_dir() else ()
        return sorted((path for path in found if NAME.fullmatch(path.name)), key=_place)

    def _what_there_is(self, but_step: int | None = None) -> str:
        steps = [step for step in self.steps() if step != but_step]
        return f"; there are steps {', '.join(map(str, steps))}" if steps else ""


def _finite(score: float | None) -> float | None:
    return float(score) if score is not None and math.isfinite(score) else None


def _check_parts(step: int, parts: Mapping[str, Write]) -> None:
    if step < 0:
        raise InternalError(f"a checkpoint's step must be 0 or more, got {step}")
    for name in parts:
        if not PART.fullmatch(name) or name == MANIFEST:
            raise InternalError(f"a part of a checkpoint cannot be called {name!r}; use letters, digits, - . _")


def _written(folder: Path, parts: Mapping[str, Write]) -> dict[str, File]:
    """Let each part write itself; what there is then."""
    folder.mkdir()
    for name, write in parts.items():
        path = folder / name
        with blame(TrainError, f"part {name!r} of a checkpoint cannot be saved, those before it are whole"):
            write(path)
        if not (path.is_file() or any(entries(path) if path.is_dir() else ())):
            raise TrainError(f"part {name!r} of a checkpoint wrote nothing to the path that it was given")
    return {str(path.relative_to(folder)): _described(path) for path in entries(folder) if _is_file(path)}


def _is_file(path: Path) -> bool:
    if path.is_symlink() or not (path.is_file() or path.is_dir()):
        raise TrainError(f"a checkpoint holds plain files alone, {path.name} is none; copy what it stands for")
    return path.is_file()


def _described(path: Path) -> File:
    return File(path.stat().st_size, digest_of(path))


def _sealed(manifest: Manifest) -> bytes:
    """The list as bytes, with a digest of itself."""
    return to_json(but(manifest, digest=_digest_of(manifest)))


def _digest_of(manifest: Manifest) -> str:
    return sha256(to_json(but(manifest, digest=""))).hexdigest()


def _opened(folder: Path) -> Checkpoint | str:
    """A checkpoint, or why there is none."""
    try:
        manifest = from_json((folder / MANIFEST).read_bytes(), Manifest)
    except OSError as error:
        return f"{MANIFEST}: {(error.strerror or 'it cannot be read').lower()}"
    except ValueError as error:
        return f"{MANIFEST}: {error}"
    if manifest.format != FORMAT:
        return f"it has format {manifest.format}, this version reads format {FORMAT}"
    if manifest.digest != _digest_of(manifest):
        return f"{MANIFEST} is not what was saved"
    return Checkpoint(folder, manifest)


def _place(path: Path) -> tuple[int, int]:
    found = NAME.fullmatch(path.name)
    assert found is not None
    return int(found[1]), int(found[2] or 1)


def _step_of(path: Path) -> int:
    return _place(path)[0]


def _by_score(checkpoint: Checkpoint) -> tuple[float, int]:
    assert checkpoint.score is not None
    return checkpoint.score, checkpoint.step


def _free_name(path: Path) -> Path:
    """The name, with a number behind it if it is taken."""
    free, number = path, 2
    while free.exists():
        free, number = path.with_name(f"{path.name}-{number}"), number + 1
    return free
