"""The trackers that there are, each through its own package.

Promises: a package is imported in the thread of its tracker, never before. A run that is resumed goes on under the name
that it had. Values are handed on under their names; what a package cannot spell is spelled with an underscore.
"""

import importlib
import importlib.util
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from windrow.errors import ConfigError
from windrow.observe.trackers.config import Kind, TrackerConfig
from windrow.observe.trackers.protocol import Occasion, Setting, Tracker

PACKAGES: dict[Kind, tuple[str, ...]] = {
    "tensorboard": ("tensorboard", "torch"),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
    "trackio": ("trackio",),
}
"""What each needs; the extra has the name of the kind."""


def check_installed(config: TrackerConfig) -> None:
    """Refuse a tracker whose package is not there."""
    for package in PACKAGES[config.kind]:
        if importlib.util.find_spec(package) is None:
            raise ConfigError(
                f"tracker {config.kind} needs the package {package}, which is not installed; "
                f"pip install 'windrow[{config.kind}]'"
            )


def begin(config: TrackerConfig, occasion: Occasion) -> Tracker:
    """Start a tracker; takes as long as its package takes, and raises what that raises."""
    return MAKERS[config.kind](config, occasion)


class TensorBoard:
    """Writes event files; `tensorboard --logdir` shows them."""

    def __init__(self, config: TrackerConfig, occasion: Occasion) -> None:
        if config.folder is None:
            folder = occasion.folder / "tensorboard"
        else:
            folder = Path(config.folder) / (config.name or occasion.name)
        after = occasion.resumed_after
        # what an earlier process wrote of steps that come again is hidden
        arguments = {"log_dir": str(folder), "purge_step": None if after is None else after + 1, **config.arguments}
        self._writer: Any = _module("torch.utils.tensorboard").SummaryWriter(**arguments)

    def describe(self, settings: Mapping[str, Setting]) -> None:
        rows = [f"| {name} | {_in_a_table(value)} |" for name, value in settings.items()]
        self._writer.add_text("settings", "\n".join(["| setting | value |", "| --- | --- |", *rows]), 0)
        self._writer.flush()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """Weights & Biases."""

    def __init__(self, config: TrackerConfig, occasion: Occasion) -> None:
        name = config.name or occasion.name
        folder = Path(config.folder or occasion.folder)
        folder.mkdir(parents=True, exist_ok=True)
        # it neither speaks on the console, nor asks for a key there, nor takes what others say there
        settings = {"silent": True, "console": "off", **config.arguments.get("settings", {})}
        mine = {"project": config.project, "name": name, "id": name, "resume": "allow", "dir": str(folder)}
        arguments = {**mine, **config.arguments, "settings": settings}
        wandb = _module("wandb")
        wandb.setup(wandb.Settings(**settings))
        self._run: Any = wandb.init(**arguments)
        self._run.define_metric("*", step_metric="step")  # its own count cannot go back when a run is resumed

    def describe(self, settings: Mapping[str, Setting]) -> None:
        self._run.config.update(dict(settings), allow_val_change=True)  # a resumed run may have more steps

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({"step": step, **metrics})

    def close(self) -> None:
        self._run.finish()


class Mlflow:
    """MLflow: a server if `tracking_uri` is among the arguments, else a database in a folder."""

    MOST = 1000
    """Values that its server takes at once."""
    MOST_SETTINGS, LONGEST = 100, 500
    """The same of settings, and characters of one."""

    def __init__(self, config: TrackerConfig, occasion: Occasion) -> None:
        name = config.name or occasion.name
        folder = Path(config.folder or occasion.folder).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        arguments = {"tracking_uri": f"sqlite:///{folder / 'mlflow.db'}", **config.arguments}
        self._client: Any = _module("mlflow.tracking").MlflowClient(**arguments)
        self._metric: Any = _module("mlflow.entities").Metric
        self._param: Any = _module("mlflow.entities").Param
        found = self._client.get_experiment_by_name(config.project)
        experiment = self._client.create_experiment(config.project) if found is None else found.experiment_id
        self._run_id = self._go_on(experiment, name) or self._client.create_run(experiment, run_name=name).info.run_id

    def describe(self, settings: Mapping[str, Setting]) -> None:
        known = self._client.get_run(self._run_id).data.params  # it refuses to change what a run began with
        told = {_spelled(name): str(value)[: self.LONGEST] for name, value in settings.items()}
        new = [self._param(name, value) for name, value in told.items() if name not in known]
        for begin_at in range(0, len(new), self.MOST_SETTINGS):
            self._client.log_batch(self._run_id, params=new[begin_at : begin_at + self.MOST_SETTINGS])

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        values = [self._metric(_spelled(name), value, now, step) for name, value in metrics.items()]
        for begin_at in range(0, len(values), self.MOST):
            self._client.log_batch(self._run_id, metrics=values[begin_at : begin_at + self.MOST])

    def close(self) -> None:
        self._client.set_terminated(self._run_id)

    def _go_on(self, experiment: str, name: str) -> str | None:
        """The run of this name, which goes on; None if there is none."""
        quoted = name.replace("'", "")
        runs = self._client.search_runs([experiment], f"attributes.run_name = '{quoted}'", max_results=1)
        for run in runs:
            run_id: str = run.info.run_id
            self._client.update_run(run_id, status="RUNNING")
            return run_id
        return None


class Trackio:
    """Trackio: on this machine, or on a Space or server that the arguments name."""

    def __init__(self, config: TrackerConfig, occasion: Occasion) -> None:
        mine = {"project": config.project, "name": config.name or occasion.name, "resume": "allow", "embed": False}
        self._run: Any = _module("trackio").init(**{**mine, **config.arguments})

    def describe(self, settings: Mapping[str, Setting]) -> None:
        self._run.config.update(settings)  # it is sent with what is logged first

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


MAKERS: dict[Kind, Callable[[TrackerConfig, Occasion], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "mlflow": Mlflow,
    "trackio": Trackio,
}


def _module(name: str) -> Any:  # noqa: ANN401 packages that need not be installed have no types here
    return importlib.import_module(name)


def _spelled(name: str) -> str:
    """A name as MLflow accepts it."""
    return re.sub(r"[^\w./ -]", "_", name)


def _in_a_table(value: Setting) -> str:
    """In one line, without what would end a cell."""
    return str(value).replace("|", "\\|").replace("\n", " ")
