"""Where the models are that a file names: Hugging Face folders, checkpoints, runs.

Promises: of a run its newest checkpoint is taken; what is none of these is refused by name.
"""

from pathlib import Path

from windrow.errors import ConfigError
from windrow.store.run import ABOUT, RunFolder

MODEL = "model"
"""The part of a checkpoint that is a Hugging Face folder."""


def model_folder(path: str, named: str) -> Path:
    """The Hugging Face folder behind a path; `named` is what an error calls the setting."""
    folder = Path(path).expanduser().absolute()
    for place in folder, folder / MODEL:
        if (place / "config.json").is_file():
            return place
    checkpoint = RunFolder.read(folder).checkpoints.latest() if (folder / ABOUT).is_file() else None
    if checkpoint is None:
        raise ConfigError(
            f"{named} is {path}, which is no model; give a folder that save_pretrained wrote, a checkpoint, or a run "
            f"that has one"
        )
    return checkpoint.path(MODEL)
