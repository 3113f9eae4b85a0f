"""The settings of a tracker."""

from typing import Annotated, Any, Literal

from windrow.errors import ConfigError
from windrow.types import Meta, Value

Kind = Literal["tensorboard", "wandb", "mlflow", "trackio"]


class TrackerConfig(Value, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=True):
    """Where the numbers of a run go, besides its folder."""

    kind: Annotated[Kind, Meta(description="which tracker; each needs the extra of its name")]
    project: Annotated[str, Meta(description="what the run belongs to; mlflow calls it experiment", min_length=1)] = (
        "windrow"
    )
    name: Annotated[str, Meta(description="of the run there; empty: the name of the run folder")] = ""
    folder: Annotated[
        str | None, Meta(description="where it keeps its files; none: the run folder; trackio has a place of its own")
    ] = None
    arguments: Annotated[
        dict[str, Any],
        Meta(description="for SummaryWriter, wandb.init, MlflowClient or trackio.init, such as mode: offline"),
    ] = {}

    def __post_init__(self) -> None:
        if self.kind == "trackio" and self.folder is not None:
            raise ConfigError(f"folder {self.folder!r} cannot be set for trackio; set TRACKIO_DIR before the start")
