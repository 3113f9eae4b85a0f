"""Training with a server that generates: it has the policy's weights from the beginning, and after every update."""

import asyncio
from pathlib import Path

import pytest
from tests.engines.server import Server, serving
from tests.pipelines.kit import Notes, small

from windrow.cluster.local import ResourceManager
from windrow.doctor import chain
from windrow.doctor.findings import Finding
from windrow.engines.openai.settings import OpenAISettings
from windrow.engines.torch import TorchEngine
from windrow.errors import ConfigError, WindrowError
from windrow.pipelines.agentic import train_agent
from windrow.pipelines.config import Agentic
from windrow.pipelines.placing import Roles, Workers
from windrow.pipelines.playing import playing
from windrow.pipelines.serving import Servers
from windrow.pipelines.training import Outcome, Training
from windrow.store.run import RunFolder
from windrow.text import ChatCodec
from windrow.tiny import tiny_model, tiny_tokenizer
from windrow.types import but, to_plain

CONTEXT = 512


def at(url: str) -> OpenAISettings:
    return OpenAISettings(base_url=url, model="tiny", context_tokens=CONTEXT, flavour="vllm", logprobs_mode="raw")


def served(folder: Path, url: str) -> Agentic:
    """A run of two steps whose model is in a folder, and whose engine is a server."""
    file = small(steps=2, servers=Servers(at=[at(url)], weights=str(folder / "weights")))
    tokenizer = tiny_tokenizer()
    tiny_model(vocab=len(tokenizer), context=CONTEXT).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    loss = but(file.train.loss, entropy=1e-3)  # so that every row is read, whatever it scored
    train = but(file.train, loss=loss)
    return but(file, model=but(file.model, path=str(folder / "model")), train=train)


async def trained(folder: Path, notes: Notes, *, has_controls: bool = True) -> tuple[Outcome, Server]:
    tokenizer = tiny_tokenizer()
    other = tiny_model(vocab=len(tokenizer), context=CONTEXT, seed=9)  # not the policy's weights
    engine = TorchEngine("behind", other, ChatCodec(tokenizer), capacity=16)
    async with serving(engine) as server:
        server.has_controls = has_controls
        file = served(folder, server.url)
        with RunFolder.create(folder / "runs", file.name, str(to_plain(file))) as run:
            return await train_agent(Training(file, run, notes)), server


def test_a_server_samples_with_the_policys_weights_from_the_beginning_on(tmp_path: Path):
    notes = Notes()
    outcome, server = asyncio.run(trained(tmp_path, notes))
    assert outcome.steps == 2
    reloads = [call for call in server.calls if call.startswith("collective_rpc")]
    assert len(reloads) == 3, "what it began with, and two updates"
    apart = [report.metrics["train/mismatch_mean"] for report in notes.steps]
    assert max(apart) < 1e-4
    assert [*(tmp_path / "weights").iterdir()] == []


async def tried(folder: Path) -> list[Finding]:
    tokenizer = tiny_tokenizer()
    engine = TorchEngine("behind", tiny_model(vocab=len(tokenizer), context=CONTEXT, seed=9), ChatCodec(tokenizer))
    async with serving(engine) as server:
        file = served(folder, server.url)
        assert file.servers is not None
        two = but(file.servers, at=[*file.servers.at, at("http://nobody.there")])
        return await chain._looked(chain._alone(but(file, devices=2, servers=two)))


def test_the_chain_of_a_file_with_servers_is_tried_on_the_first_of_them(tmp_path: Path):
    assert [each.state for each in asyncio.run(tried(tmp_path))] == ["ok", "ok", "ok"]
    assert [*(tmp_path / "weights").iterdir()] == []


def test_a_server_that_cannot_load_weights_is_refused_by_name(tmp_path: Path):
    with pytest.raises(WindrowError) as refused:
        asyncio.run(trained(tmp_path, Notes(), has_controls=False))
    assert "VLLM_SERVER_DEV_MODE=1" in str(refused.value)


def test_nothing_is_left_of_players_that_cannot_be_made(tmp_path: Path):
    file, tokenizer = served(tmp_path, "http://x"), tiny_tokenizer()
    model = tiny_model(vocab=len(tokenizer), context=CONTEXT)
    elsewhere = but(file, roles=Roles(actor_infer=Workers(device_mapping=5)))
    with pytest.raises(ConfigError, match="device"):
        playing(elsewhere, model, ChatCodec(tokenizer), 0, ResourceManager(1))
    assert [*(tmp_path / "weights").iterdir()] == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"servers": Servers(at=[])}, "servers.at is empty; name a server, or leave servers out"),
        ({"devices": 2}, "servers.at has 1 servers and there is room for 2 engines"),
        ({"runtime": "ray"}, "servers load weights from folders, which runtime ray has none of"),
        ({"servers": Servers(at=[but(at("http://x"), require_training=False)])}, "http://x has require_training false"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_read(changes: dict[str, object], words: str):
    given: dict[str, object] = {"servers": Servers(at=[at("http://x")]), **changes}
    with pytest.raises(ConfigError, match=words):
        Agentic(**given)  # type: ignore[arg-type]  # they are settings of it
