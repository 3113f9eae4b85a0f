"""Whether engine and trainer of a training file agree, before anything is trained.

Promises: a model as the file asks for it is loaded, its weights go to an engine the way that they do in training, a few
episodes are played, and a whole update with a learning rate of 0 is made on them (`train/roles/self_test.py`). Nothing
is trained, no run folder is made, and everything is on this machine: one engine, or the first of the file's servers,
and the trainer in this process, whatever devices, trainer processes and Ray cluster the file asks for. A warm start is
left out.
"""

import asyncio
from typing import TYPE_CHECKING

from windrow.doctor.findings import Finding
from windrow.errors import ConfigError, TrainError
from windrow.pipelines.config import Agentic, Cloning, Rlvr, TrainFile
from windrow.pipelines.grounds import open_ground
from windrow.pipelines.placing import Roles
from windrow.pipelines.readiness import check_ready
from windrow.protocol import DataProto
from windrow.types import but

if TYPE_CHECKING:
    from windrow.rollout.scheduler import RolloutScheduler
    from windrow.train.roles import Actor

NAMES = ("idle update", "old and new", "trainer and engine")
"""The links of the chain, in the order in which they are looked at."""
EPISODES = 8
"""As many as are played at least: enough tokens to tell rounding from something wrong."""


def findings(file: TrainFile) -> list[Finding]:
    """One for each link of the chain; raises ConfigError if the file cannot be trained at all."""
    if isinstance(file, Cloning):
        raise ConfigError("pipeline sft trains on nothing that an engine sampled; give an agentic or rlvr file")
    check_ready(file, goes_on=True)
    return asyncio.run(_looked(_alone(file)))


def _alone(file: Agentic | Rlvr) -> Agentic | Rlvr:
    """The same on this machine, with whatever is played first: a policy that has learnt nothing may never vary."""
    unfiltered = but(file.rollout.train_env_manager, filter="none")
    return but(
        file,
        devices=1,
        roles=Roles(),
        runtime="local",
        servers=None if file.servers is None else but(file.servers, at=file.servers.at[:1]),
        rollout=but(file.rollout, train_env_manager=unfiltered),
        validate=but(file.validate, how="between"),
        train=but(file.train, processes=0),
    )


async def _looked(file: Agentic | Rlvr) -> list[Finding]:
    from windrow.pipelines.learning import language
    from windrow.pipelines.playing import playing
    from windrow.text import ChatCodec
    from windrow.train.models import load_model
    from windrow.train.roles import Actor, self_test

    spoken = await language(file, file.warm_start, None)
    model = load_model(file.model, file.seed, spoken.vocabulary)
    with open_ground(file) as ground:
        players = playing(file, model, ChatCodec(spoken.tokenizer), 0, ground.devices)
        try:
            actor = Actor(file.train, model, seed=file.seed, dtype=file.model.dtype, threads=file.train.threads)
            await _hand_over(actor, file, players.rollouts)
            batch = await players.rollouts.get_batch(DataProto(meta_info={"global_step": 1}), _wanted(file))
        finally:
            await players.close()
    if batch is None:
        raise TrainError("no episode could be played; windrow rollout shows why")
    found = self_test(actor, batch, _tolerance(file))
    return [
        Finding(name, "ok" if each.holds else "bad", *_words(each.words))
        for name, each in zip(NAMES, found, strict=True)
    ]


async def _hand_over(actor: "Actor", file: Agentic | Rlvr, rollouts: "RolloutScheduler") -> None:
    """The weights go to the engine as an update does, which confirms that they have come."""
    from windrow.train.weights import LocalWeights, SharedWeights, deliver

    await rollouts.initialize()
    await rollouts.suspend()
    if file.servers is None:
        await deliver(LocalWeights(actor.model, file.engine.dtype).pack(1), rollouts.update_weights)
        return
    with SharedWeights(file.servers.folder()) as shared:
        await deliver(shared.pack(1, actor.model, file.engine.dtype), rollouts.update_weights)


def _wanted(file: Agentic | Rlvr) -> int:
    """Whole groups, and enough of them."""
    size = file.collecting.train_env_manager.group_size
    return -(-EPISODES // size) * size


def _tolerance(file: Agentic | Rlvr) -> float:
    """How far trainer and engine may lie apart: by rounding, or by what the file takes for no mismatch."""
    from windrow.train.roles.self_test import TOLERANCE

    is_exact = file.model.dtype == "float32" and file.engine.dtype in (None, "float32")
    return TOLERANCE if is_exact else file.train.mismatch_alarm


def _words(words: str) -> tuple[str, str]:
    """What was found, and what to do about it."""
    found, _, advice = words.partition("; ")
    return found, advice
