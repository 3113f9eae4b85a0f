"""The places of workers that share their work: dp × tp × pp.

Promises: neighbours in rank hold one layer together (tp), then come those that read other rows (dp), then the next
stage (pp). Whoever has `tp_rank` 0 in the last stage answers for all that read the same rows.
"""

from collections.abc import Sequence

from windrow.cluster.config import WorkerConfig
from windrow.errors import ConfigError
from windrow.types import Value


class Place(Value, frozen=True):
    """Where one worker is."""

    dp_rank: int
    tp_rank: int
    pp_rank: int


class Mesh(Value, frozen=True):
    """How many there are in each direction."""

    dp: int = 1
    """Data parallel: each reads its own rows."""
    tp: int = 1
    """Tensor parallel: each holds a part of every layer."""
    pp: int = 1
    """Pipeline parallel: each holds some of the layers."""

    @property
    def size(self) -> int:
        return self.dp * self.tp * self.pp

    def place(self, rank: int) -> Place:
        rest, tp_rank = divmod(rank, self.tp)
        pp_rank, dp_rank = divmod(rest, self.dp)
        return Place(dp_rank, tp_rank, pp_rank)

    def speakers(self) -> list[int]:
        """The ranks that answer for their rows, in the order of the rows."""
        return [((self.pp - 1) * self.dp + dp_rank) * self.tp for dp_rank in range(self.dp)]


def mesh_of(name: str, world_size: int, config: WorkerConfig) -> Mesh:
    """The mesh of a cluster with so many workers."""
    tp, pp = config.tensor_parallel, config.pipeline_parallel
    if tp < 1 or pp < 1 or world_size % (tp * pp):
        raise ConfigError(
            f"cluster {name}: {world_size} workers cannot be tensor_parallel {tp} × pipeline_parallel {pp}; "
            f"their number must be a multiple of the product"
        )
    return Mesh(world_size // (tp * pp), tp, pp)


def placed(name: str, there: Sequence[int], config: WorkerConfig) -> list[tuple[int, ...]]:
    """The devices of each worker."""
    mapping = there if config.device_mapping is None else config.device_mapping
    unknown = sorted(set(mapping) - set(there))
    each = config.devices_per_worker
    if unknown:
        raise ConfigError(f"cluster {name}: no devices {unknown}; there are {[*there]}")
    if len(set(mapping)) != len(mapping):
        raise ConfigError(f"cluster {name}: device_mapping {[*mapping]} names a device twice")
    if each < 1 or not mapping or len(mapping) % each:
        raise ConfigError(f"cluster {name}: {len(mapping)} devices cannot be shared out by {each} for each worker")
    return [tuple(mapping[start : start + each]) for start in range(0, len(mapping), each)]
