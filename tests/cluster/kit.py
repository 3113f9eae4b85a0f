"""Workers to be called in every way."""

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any

from windrow import DataProto, Dispatch, Worker, register
from windrow.cluster.local import WorkerConfig
from windrow.cluster.worker import Seat

if TYPE_CHECKING:
    import torch

SHORT_S = 0.2
WIDTH, HIDDEN = 8, 12


class Odd(Exception):
    """An exception with a constructor of its own."""

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self.rank = rank


class Calculator(Worker[WorkerConfig]):
    """Says what it was called with."""

    def __init__(self, seat: Seat[WorkerConfig]) -> None:
        super().__init__(seat)
        self.heard: list[Any] = []
        self.hangs = threading.Event()
        self.is_free = threading.Event()
        self.rung: asyncio.Event | None = None

    @register(Dispatch.ONE_TO_ALL)
    def where(self) -> tuple[str, int, tuple[int, ...], int, int]:
        return self.name, self.rank, self.devices, self.dp_rank, self.tp_rank

    @register(Dispatch.ONE_TO_ALL)
    def pid(self) -> int:
        return os.getpid()

    @register(Dispatch.ONE_TO_ALL)
    def scaled(self, number: int, by: int = 1) -> int:
        return number * by + self.rank

    @register(Dispatch.ONE_TO_ALL_ONE)
    def remember(self, what: object) -> int:
        self.heard.append(what)
        return self.rank

    @register(Dispatch.RANK_ZERO)
    def remember_alone(self, what: object) -> int:
        self.heard.append(what)
        return self.rank

    @register(Dispatch.ONE_TO_ALL)
    def number(self, count: int, ballast: bytes = b"") -> None:
        self.heard.append(count)

    @register(Dispatch.ONE_TO_ALL)
    def told(self) -> list[Any]:
        told, self.heard = self.heard, []
        return told

    @register(Dispatch.ALL_TO_ALL)
    def own(self, item: object, *, extra: object = None) -> tuple[int, object, object]:
        return self.rank, item, extra

    @register(Dispatch.DP_MP_COMPUTE, whole=("names",))
    def named(self, values: list[int], names: list[str]) -> list[str]:
        """Only the first of those who hold a model together gives the answer that counts."""
        return [f"{names[value]}@{self.dp_rank}" if self.tp_rank == 0 else "wrong" for value in values]

    @register(Dispatch.DP_MP_COMPUTE, pad=True)
    def doubled(self, batch: DataProto) -> DataProto:
        return DataProto.from_dict({"y": batch["x"] * 2}, {"dp": [self.dp_rank] * len(batch)})

    @register(Dispatch.DP_MP_COMPUTE)
    def same(self, rows: Any) -> Any:
        return rows

    @register(Dispatch.ONE_TO_ALL)
    async def listen(self) -> int:
        """Wait for `ring`, on the event loop."""
        self.rung = asyncio.Event()
        await self.rung.wait()
        return self.rank

    @register(Dispatch.ONE_TO_ALL)
    async def ring(self) -> bool:
        """Whether somebody listened."""
        if self.rung is None:
            return False
        self.rung.set()
        self.rung = None
        return True

    @register(Dispatch.ONE_TO_ALL, timeout_s=SHORT_S)
    def hang_shortly(self, ranks: list[int]) -> None:
        self.hang(ranks)

    @register(Dispatch.ONE_TO_ALL)
    def hang(self, ranks: list[int]) -> None:
        """Block until somebody calls `free`."""
        if self.rank in ranks:
            self.hangs.set()
            self.is_free.wait()
            self.is_free.clear()

    @register(Dispatch.ALL_TO_ALL)
    async def free(self, hangs: bool) -> None:
        if hangs:
            self.is_free.set()

    @register(Dispatch.ONE_TO_ALL)
    def fail(self, rank: int, others_hang: bool = False) -> None:
        if self.rank == rank:
            raise Odd(self.rank)
        if others_hang:
            self.hang([self.rank])

    def hidden(self) -> None:
        """Not registered."""

    @register(Dispatch.DP_MP_COMPUTE)
    def layers(self, x: "torch.Tensor") -> "torch.Tensor":
        """Two layers of which each holds a part: the rows of the first, the columns of the second."""
        import torch
        import torch.distributed as dist

        first, second = (part.requires_grad_() for part in self._parts())
        y = torch.relu(x @ first.T) @ second.T
        dist.all_reduce(y.data, group=self.torch_mesh.get_group("tp"))
        y.backward(y.detach())  # of half the sum of squares
        self._gradients = [first.grad, second.grad]
        return y.detach()

    @register(Dispatch.ONE_TO_ALL)
    def gradients(self) -> list["torch.Tensor"]:
        """Of all rows, of the own part."""
        import torch.distributed as dist

        for gradient in self._gradients:
            assert gradient is not None
            dist.all_reduce(gradient, group=self.torch_mesh.get_group("dp"))
        return [gradient for gradient in self._gradients if gradient is not None]

    def _parts(self) -> list["torch.Tensor"]:
        first, second = whole_layers()
        own = slice(self.tp_rank * HIDDEN // self.mesh.tp, (self.tp_rank + 1) * HIDDEN // self.mesh.tp)
        return [first[own].clone(), second[:, own].clone()]


def whole_layers() -> tuple["torch.Tensor", "torch.Tensor"]:
    import torch

    chance = torch.Generator().manual_seed(7)
    return torch.randn(HIDDEN, WIDTH, generator=chance), torch.randn(WIDTH, HIDDEN, generator=chance)


class Unmakable(Worker[WorkerConfig]):
    """Cannot be made where rank is 1."""

    def __init__(self, seat: Seat[WorkerConfig]) -> None:
        super().__init__(seat)
        if self.rank == 1:
            raise ValueError("no room for a model")
