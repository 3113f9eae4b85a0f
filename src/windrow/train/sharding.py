"""One network over several processes: each keeps a part of every weight, and reads a part of every mini-batch.

FSDP2: the layers of a network are put together one after the other when they are needed, and taken apart again. A
process that is alone keeps everything.

Promises: gradients are summed, never averaged, over processes, because the weight of a token in a loss is the one that
it has among all rows. So a step is the step of one process that reads everything, up to rounding. What is taken out
(`whole`) does not depend on how many processes there are, nor does what is put in (`part`).

All processes must call the same things in the same order.
"""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.utils import get_total_norm

from windrow.errors import ConfigError, TrainError
from windrow.train.networks import Policy, Values


class Shards:
    """The place of a process among those that share a network; what `windrow.train.learner.Peers` asks for."""

    def __init__(self, device: Literal["cpu", "cuda"] = "cpu") -> None:
        """The processes must have found each other already."""
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.device = f"cuda:{torch.cuda.current_device()}" if device == "cuda" else "cpu"
        """Where the models of this process belong."""
        self._mesh: DeviceMesh = init_device_mesh(device, (self.size,))

    def adopt(self, network: nn.Module) -> None:
        """Spread a network over all processes, layer by layer; it must be the same in all of them.

        One process alone keeps it whole: there is nobody to share with, and putting together what it has costs time.
        """
        if self.size == 1:
            return
        layers = _layers(network)
        if not layers:
            raise ConfigError(
                f"{type(network).__name__} has no list of layers that could be spread over processes; "
                f"set train.processes=0"
            )
        self._check_same(network)
        for layer in layers:
            fully_shard(layer, mesh=self._mesh, mp_policy=_precision(network))
        # what is left, taken apart after a forward like the layers: what stays together would not see new weights
        fully_shard(network, mesh=self._mesh, reshard_after_forward=True)
        for module in network.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)

    def total(self, numbers: Tensor) -> Tensor:
        """The sum over all processes."""
        summed = numbers.detach().clone()
        dist.all_reduce(summed)
        return summed

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """Of the whole gradient, wherever its parts are."""
        norm = get_total_norm(gradients)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def last(self, network: nn.Module, *, is_last: bool) -> None:
        """Gradients are exchanged after every micro-batch, so that nobody ever holds a whole one."""
        if isinstance(network, FSDPModule):
            network.set_is_last_backward(is_last)

    def whole(self, tensor: Tensor) -> Tensor:
        """A copy of a parameter or of a moment, all of it, in main memory; all but the first get its shape."""
        found = tensor.detach()
        found = found.full_tensor() if isinstance(found, DTensor) else found
        if self.rank:
            return torch.empty_like(found, device="meta")
        return found.to("cpu", copy=True)

    def part(self, whole: Tensor, like: Tensor) -> Tensor:
        """What this process keeps of it, laid out like its own."""
        if not isinstance(like, DTensor):
            return whole.to(like.device)
        here = whole.to(like.device)
        return distribute_tensor(here, like.device_mesh, like.placements, src_data_rank=None)

    def _check_same(self, network: nn.Module) -> None:
        """Whether all processes have begun with the same weights; what they mix otherwise is nobody's network."""
        from windrow.engines.torch.weights import checksum_of

        sums: list[str] = [""] * self.size
        dist.all_gather_object(sums, checksum_of(network.state_dict()))
        if len(set(sums)) > 1:
            raise TrainError(
                f"trainer processes begin with different weights ({', '.join(sums)}); "
                f"make the model from a folder or a seed, the same in all of them"
            )


def _layers(network: nn.Module) -> list[nn.Module]:
    """The layers that a model is a stack of: its largest list of modules; lists inside of layers are smaller."""
    lists = [module for module in network.modules() if isinstance(module, nn.ModuleList)]
    sizes = [_size(each) for each in lists]
    return list(lists[sizes.index(max(sizes))]) if lists else []


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _precision(network: nn.Module) -> MixedPrecisionPolicy:
    """Layers travel in the numbers that they compute with; gradients are summed in float32 in any case."""
    dtype = network.dtype if isinstance(network, Policy | Values) else torch.float32
    if dtype == torch.float32:
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
