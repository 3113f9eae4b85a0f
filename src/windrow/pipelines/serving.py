"""Servers that generate in a run, in place of embedded engines.

Promises: a server has the policy's weights before it plays anything, and gets each new version as a folder of
safetensors that it is told to load. One that cannot load weights is refused by name when the run begins: what it
sampled would be called the policy's and would not be.

What it does not do: it starts no server, and it copies nothing to other machines; a server must see the folder under
the same path.
"""

from pathlib import Path
from typing import Annotated

from windrow.cluster.config import EngineConfig
from windrow.cluster.mapping import Layout
from windrow.engines.openai.engine import OpenAIEngine
from windrow.engines.openai.settings import OpenAISettings
from windrow.engines.openai.wire import Encode
from windrow.engines.protocol import Acknowledgement, Engine
from windrow.errors import ConfigError, Refused
from windrow.types import Meta, Value


class Servers(Value, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=True):
    """Where generation is done for us."""

    at: Annotated[list[OpenAISettings], Meta(description="servers of the model that is trained, one for each engine")]
    weights: Annotated[
        str, Meta(description="folder for new weights that all of them can read; not set: memory of this machine")
    ] = ""

    def folder(self) -> Path | None:
        """Where weights are written; None: wherever there is room."""
        if not self.weights:
            return None
        folder = Path(self.weights).expanduser().absolute()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"servers.weights is {self.weights}, which cannot be made: {error}") from error
        return folder


def check_servers(servers: Servers, runtime: str, layout: Layout | None) -> None:
    """Refuse what cannot work; a layout that is left to a plan is none."""
    if runtime == "ray":
        raise ConfigError("servers load weights from folders, which runtime ray has none of; use runtime local")
    if layout is None:
        raise ConfigError("roles has a device_mapping auto, and no plan knows what servers can do; say it yourself")
    if not servers.at:
        raise ConfigError("servers.at is empty; name a server, or leave servers out")
    if len(servers.at) != len(layout.engines):
        raise ConfigError(
            f"servers.at has {len(servers.at)} servers and there is room for {len(layout.engines)} engines; a server "
            f"belongs to one engine, so set devices to {len(servers.at)}"
        )
    bad = [server.base_url for server in servers.at if not server.require_training]
    if bad:
        raise ConfigError(f"the server at {bad[0]} has require_training false, and this is training; leave it out")


class Served(OpenAIEngine):
    """A server that has the policy's weights from the beginning."""

    def __init__(
        self, name: str, settings: OpenAISettings, weights: Path, *, devices: tuple[int, ...], encode: Encode
    ) -> None:
        """`weights` is the folder of those that the run begins with."""
        super().__init__(name, settings, devices=devices, encode=encode)
        self._first = weights

    async def start(self) -> Acknowledgement:
        await super().start()
        try:
            return await self._given_weights()
        except BaseException:  # only to undo
            await self.close()
            raise

    async def _given_weights(self) -> Acknowledgement:
        if not self.traits.can_load:
            raise Refused(
                f"engine {self.name}: the server at {self.settings.root} cannot load weights, so it cannot be trained "
                f"with; take a vLLM server that was started with VLLM_SERVER_DEV_MODE=1, and set flavour: vllm"
            )
        return await self.load(self.version, self._first)


class ServerMaker:
    """Makes the engine of each server."""

    def __init__(self, servers: Servers, layout: Layout, weights: Path) -> None:
        """`weights` is the folder of those that the run begins with."""
        self._servers = dict(zip(layout.engines, servers.at, strict=True))
        self._weights = weights

    def __call__(self, name: str, devices: tuple[int, ...], config: EngineConfig) -> Engine:
        codec = config.codec
        return Served(
            name,
            self._servers[devices],
            self._weights,
            devices=devices,
            encode=lambda text: codec.encode(text).tolist(),
        )
