"""What a run needs, looked for before it has a folder.

Promises: what is missing is a ConfigError that names it, and nothing has been made or changed by then. What only work
itself can show (whether a model fits into memory) is not looked for.
"""

from windrow.errors import ConfigError
from windrow.observe.trackers import check_installed
from windrow.pipelines.config import Agentic, Cloning, Rlvr
from windrow.pipelines.warm_start import check_environments, check_recording


def check_ready(file: Agentic | Rlvr | Cloning, *, goes_on: bool = False) -> None:
    """Environments, tasks, models, recordings, trackers; a run that `goes_on` has its warm start behind it."""
    from windrow.train.folders import model_folder
    from windrow.train.models import check_model

    check_environments(file)
    _check_tasks(file)
    check_model(file.model)
    for tracker in file.trackers:
        check_installed(tracker)
    if isinstance(file, Cloning):
        check_recording(file.demonstrations)
        return
    if file.train.reference:
        model_folder(file.train.reference, "train.reference")
    if file.warm_start is not None and not goes_on:
        check_recording(file.warm_start)


def _check_tasks(file: Agentic | Rlvr | Cloning) -> None:
    """A validation plays all tasks that there are, so there must be an end of them."""
    if file.collecting.val_env_manager.source(file.seed, "val").is_endless:
        raise ConfigError(
            "rollout.val_env_manager.task_source never ends, and a validation plays all of it; set its max_tasks, "
            "passes or limit"
        )
