"""Taking a model out of a run, to be used without Windrow."""

import os
import shutil
from pathlib import Path

from windrow.errors import ConfigError, DataError
from windrow.store.checkpoints import Checkpoint, Which
from windrow.store.durable import sync_all
from windrow.store.run import RunFolder

MODEL = "model"
"""The part of a checkpoint that `from_pretrained` can load."""


def export(run: RunFolder, to: Path | str, which: Which = "latest") -> Checkpoint:
    """Copy the model of a checkpoint to a folder, which is there whole or not at all; which checkpoint it was."""
    to = Path(to).absolute()
    if to.exists() and not (to.is_dir() and not any(to.iterdir())):
        raise ConfigError(f"{to} exists already; export to a folder that is new or empty")
    checkpoint = run.checkpoints.load(which)
    source = checkpoint.path(MODEL)
    to.parent.mkdir(parents=True, exist_ok=True)
    beside = to.with_name(f".{to.name}.{os.getpid()}.tmp")
    try:
        shutil.copytree(source, beside)
        sync_all(beside)
        beside.rename(to)
    except (FileNotFoundError, shutil.Error) as error:
        if source.exists():
            raise
        raise DataError(f"checkpoint {checkpoint.folder} was removed while it was copied; export again") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return checkpoint
