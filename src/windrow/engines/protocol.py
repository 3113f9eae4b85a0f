"""What an engine promises: little, and honestly. What it cannot do it refuses by name.

The promises, held by one suite of tests over every implementation:

- A request is answered by chunks, at least one every few tokens; the last one, and only that, has a `finish`.
- The gate is here: between the return of `suspend` and `resume` not one token is sampled, whenever a request was sent.
  A request that comes to a closed gate waits there.
- `suspend("interrupt")` ends what runs with all it has sampled (`interrupted`), `"drain"` lets it end, `"freeze"` keeps
  it open where it is, to go on after `resume`.
- `interrupt(ids)` ends single requests in the same way, those that wait at the gate included.
- A client that stops listening (closes the stream, is cancelled) costs nothing: its request is forgotten.
- `load` swaps weights between two tokens and confirms version and checksum; what is sampled afterwards carries it.
- `release` ends everything as interrupted and gives the devices back; a released engine refuses requests until
  `restore`.
- A failure of one request is an `EngineError` of that request alone; `EngineLost` says that the engine is gone.
- All calls may be repeated: the second of two equal ones changes nothing.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

from windrow.requests import Chunk, Request
from windrow.types import How, Value

if TYPE_CHECKING:
    from torch import Tensor

    from windrow.engines.buckets import Shipment

Weights: TypeAlias = "Mapping[str, Tensor] | Path | Shipment"
"""Named tensors, a folder that holds them, or buckets of them in Ray's object store."""


class Traits(Value, frozen=True, kw_only=True):
    """What an engine is and can do; known before it starts."""

    capacity: int
    """Requests that it serves well at once."""
    context_tokens: int
    """Longest prompt and response together."""
    devices: tuple[int, ...] = ()
    vocabulary: int = 0
    """Tokens that it may answer with are below this; 0 if it does not know."""
    can_train: bool = True
    """Token ids and log-probabilities of everything sampled come back, so its trajectories can be trained on."""
    can_freeze: bool = True
    can_load: bool = True
    """Takes new weights; if not, whoever changes them says so with `load(version, None)`."""
    deterministic: bool = False
    """The same request gives the same tokens whatever else runs beside it."""


class Acknowledgement(Value, frozen=True, kw_only=True):
    """An engine's word for the weights it serves."""

    version: int
    checksum: str
    """The same for the same weights in every engine of a kind; empty if it cannot know."""


class Health(Value, frozen=True, kw_only=True):
    """How an engine is."""

    state: Literal["cold", "up", "released", "dead"]
    why: str = ""


class LoadReport(Value, frozen=True, kw_only=True):
    """What an engine has to do."""

    running: int
    """Requests that are being sampled (or are frozen)."""
    waiting: int
    """Requests at the gate or in the queue."""
    tokens_outstanding: int
    """Tokens that all of them may still ask for."""


@runtime_checkable
class Engine(Protocol):
    """Something that generates."""

    name: str

    @property
    def traits(self) -> Traits: ...

    async def start(self) -> Acknowledgement:
        """Warm up; says which weights it has."""
        ...

    def generate(self, request: Request) -> AsyncGenerator[Chunk, None]:
        """Answer a request, chunk by chunk; closing the iterator withdraws it."""
        ...

    async def interrupt(self, requests: Sequence[str]) -> None:
        """End some requests with what they have; unknown ones are over already."""
        ...

    async def suspend(self, how: How) -> None:
        """Close the gate; returns when nothing is being sampled."""
        ...

    async def resume(self) -> None:
        """Open the gate."""
        ...

    async def load(self, version: int, weights: "Weights | None") -> Acknowledgement:
        """Serve these weights from the next token on; None: the weights it has are this version now."""
        ...

    async def release(self) -> None:
        """Give the devices back."""
        ...

    async def restore(self) -> None:
        """Take the devices again."""
        ...

    async def health(self) -> Health: ...

    async def load_report(self) -> LoadReport: ...

    async def close(self) -> None:
        """End everything; requests that run end as interrupted."""
        ...
