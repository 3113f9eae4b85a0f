"""A program that tracks two pieces of a run for real and reads back what the tracker has: `tracking.py KIND FOLDER`.

The second piece goes on after step 1, so step 2 is told twice.
"""

import importlib
import json
import os
import sqlite3
import struct
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from windrow.observe.trackers import TrackerConfig, open_trackers

Curve = list[list[float]]
"""Steps and values."""

ARGUMENTS: Mapping[str, dict[str, Any]] = {
    "wandb": {"mode": "offline"},
    "trackio": {"auto_log_cpu": False, "auto_log_gpu": False},
}


def module(name: str) -> Any:
    """A package without types, which may be missing where they are checked."""
    return importlib.import_module(name)


def from_tensorboard(run: Path) -> Curve:
    events = module("tensorboard.backend.event_processing.event_accumulator").EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    return [[event.step, event.value] for event in events.Scalars("train/loss")]


def from_wandb(run: Path) -> Curve:
    record_kind = module("wandb.proto.wandb_internal_pb2").Record
    found: Curve = []
    for path in sorted(run.glob("wandb/offline-run-*/*.wandb")):
        for data in blocks(path.read_bytes()):
            record = record_kind.FromString(data)
            assert record.run.run_id in {"", run.name}
            items = record.history.item
            told = {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}
            if "train/loss" in told:
                found.append([told["step"], told["train/loss"]])
    return found


def blocks(data: bytes) -> Iterator[bytes]:
    """The records of a small log file as LevelDB writes it, behind a header of seven bytes."""
    at = 7
    while at < len(data):
        _, length, kind = struct.unpack_from("<IHB", data, at)
        assert kind == 1, "each is in one piece"
        yield data[at + 7 : at + 7 + length]
        at += 7 + length


def from_mlflow(run: Path) -> Curve:
    client = module("mlflow.tracking").MlflowClient(tracking_uri=f"sqlite:///{run / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("garden")
    assert experiment is not None
    (only,) = client.search_runs([experiment.experiment_id])
    assert (only.info.run_name, only.info.status) == (run.name, "FINISHED")
    return [[metric.step, metric.value] for metric in client.get_metric_history(only.info.run_id, "train/loss")]


def from_trackio(run: Path) -> Curve:
    with sqlite3.connect(Path(os.environ["TRACKIO_DIR"]) / "garden.db") as database:
        rows = database.execute("select run_name, step, metrics from metrics order by id").fetchall()
    assert {name for name, _, _ in rows} == {run.name}
    return [[step, json.loads(metrics)["train/loss"]] for _, step, metrics in rows]


READERS = {"tensorboard": from_tensorboard, "wandb": from_wandb, "mlflow": from_mlflow, "trackio": from_trackio}


def main() -> None:
    kind, folder = sys.argv[1:]
    run = Path(folder)
    config = TrackerConfig(kind=kind, project="garden", arguments=ARGUMENTS.get(kind, {}))  # type: ignore[arg-type]
    lost = 0
    for resumed_after, steps in [(None, (1, 2)), (1, (2, 3))]:
        trackers = open_trackers([config], run, resumed_after, {"train": {"lr": 1.0, "steps": steps[-1]}})
        for step in steps:
            trackers.log(step, {"train/loss": 1 / step, "episode/score_by_tag/ä:b": float("nan")})
        trackers.close(120)
        lost += trackers.lost[kind]
    sys.stderr.write("\n")
    sys.stdout.write(f"\n{json.dumps({'lost': lost, 'curve': READERS[kind](run)})}")


if __name__ == "__main__":
    main()
