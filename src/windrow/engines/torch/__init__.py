"""The embedded engine. Its settings can be read without torch; the engine itself brings torch and transformers along.

From the outside in: `engine` speaks the protocol on the event loop, `thread` runs the model, `batcher` is the gate and
the queue, `running` feeds and samples, `slots` and `store` hold tokens and cache, `forward` and `attention` are one
call of the model, `sampling` draws.
"""

from typing import TYPE_CHECKING

from windrow.engines.torch.settings import Counters, TorchSettings

if TYPE_CHECKING:
    from windrow.engines.torch.engine import TorchEngine

__all__ = ["Counters", "TorchEngine", "TorchSettings"]


def __getattr__(name: str) -> object:
    if name == "TorchEngine":
        from windrow.engines.torch.engine import TorchEngine

        return TorchEngine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
