"""One update of GRPO, beside TRL's trainer: the same model, task, groups, batch and optimizer.

The policy is a tiny Llama that has learnt to say random characters, few of them as a rule and many now and then, as
answers of language models are; it begins with the same weights on both sides, and has one thread. It is worth the share
of its answer that is small letters. Both sides begin anew in each round. An update is everything from
one set of weights to the next: sampling, rewards, advantages, gradients, optimizer, and new weights where they are
sampled. TRL samples every batch with the weights that it trains, and so do we in one of two ways; in the other,
sampling goes on while a process of its own trains, on average not more than one version behind. Time is real; what was
learnt is the mean reward of the last updates.
"""

import asyncio
import os
import re
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from random import Random
from statistics import median
from string import printable
from typing import TYPE_CHECKING, Any

from windrow.bench import Result, Say, compared
from windrow.engines.protocol import Engine
from windrow.envs.protocol import Step
from windrow.errors import ConfigError
from windrow.trajectory import Task
from windrow.types import Value

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from windrow.rollout.scheduler import RolloutScheduler
    from windrow.train.local import Roles

WHAT = "trl: one update of GRPO, and what was learnt, beside TRL's GRPOTrainer"

UPDATES = 40
LAST = 10
"""Updates whose rewards are looked at."""
ROUNDS = 3
GROUP = 8
BATCH = 128
TOKENS = 64
"""The longest answer."""
USUAL = 12
"""How long answers are on average, at first."""
WARM_ROWS, WARM_STEPS = 1024, 80
LR = 5e-4
LETTERS = "abcdefgh"
MARKS = re.compile(r"<\|\w+\|>")
HIDDEN, LAYERS, HEADS = 64, 3, 4


class Learnt(Value, frozen=True, kw_only=True, gc=True):
    """What one side took, and what it came to."""

    seconds: tuple[float, ...]
    """Of each update."""
    rewards: tuple[float, ...]


class Letters:
    """Say something: worth the share of the answer that is small letters."""

    async def start(self, task: Task) -> str:
        return LETTERS[task.ordinal % len(LETTERS)]

    async def step(self, action: str) -> Step:
        return Step(reward=worth(action), terminated=True)

    async def close(self) -> None: ...


def worth(text: str) -> float:
    """Small letters, as a share of an answer; marks of the template are no letters."""
    return sum("a" <= letter <= "z" for letter in MARKS.sub(" ", text)) / max(1, len(text))


def run(say: Say) -> list[Result]:
    """Measure both sides in turns."""
    if find_spec("trl") is None:
        raise ConfigError("the comparison needs TRL; pip install 'windrow[trl]'")
    say(
        f"{UPDATES} updates of {BATCH} answers in groups of {GROUP}, about {USUAL} and at most {TOKENS} tokens, "
        f"{ROUNDS} rounds in turns; "
        f"a Llama of {HIDDEN} × {LAYERS}, AdamW at {LR:g}, on one thread"
    )
    sync: list[Learnt] = []
    ahead: list[Learnt] = []
    theirs: list[Learnt] = []
    for number in range(ROUNDS):
        sync.append(asyncio.run(ours_learns(seed=number)))
        ahead.append(asyncio.run(ours_learns(seed=number, bound=1.0)))
        theirs.append(trl_learns(seed=number))
        told = [_told("ours, synchronous", sync[-1]), _told("ours, bound 1", ahead[-1]), _told("TRL", theirs[-1])]
        say(f"round {number + 1}: {'; '.join(told)}")
    return [*results("bound 1", ahead, theirs), *results("synchronous", sync, theirs)]


def results(way: str, ours: Sequence[Learnt], theirs: Sequence[Learnt]) -> list[Result]:
    """One of our ways and theirs in figures."""
    wall = [1e3 * median(_steady(each) for each in side) for side in (ours, theirs)]
    reward = [median(_reward(each) for each in side) for side in (ours, theirs)]
    return [
        compared(f"updates per second, {way} (alternative: TRL's GRPOTrainer)", 1e3 / wall[0], 1e3 / wall[1], "1/s"),
        compared(f"real time of one update, {way}", wall[0], wall[1], "ms"),
        compared(f"mean reward of the last {LAST} of {UPDATES} updates, {way}", reward[0], reward[1], "share"),
    ]


def _steady(learnt: Learnt) -> float:
    return median(learnt.seconds)


def _reward(learnt: Learnt) -> float:
    last = learnt.rewards[-LAST:]
    return sum(last) / len(last)


def _told(who: str, learnt: Learnt) -> str:
    return f"{who} {1e3 * _steady(learnt):.0f} ms per update, reward {_reward(learnt):.3f}"


def _model(seed: int) -> "PreTrainedModel":
    """A policy that has learnt nothing but to say random characters and to end."""
    from copy import deepcopy

    return deepcopy(_first(seed))


@cache
def _first(seed: int) -> "PreTrainedModel":
    import numpy as np

    from windrow.text import ChatCodec, Message
    from windrow.tiny import tiny_model, tiny_tokenizer
    from windrow.train.config import DemonstrationConfig, MicroConfig, OptimizerConfig
    from windrow.train.learner import Learner
    from windrow.train.networks import Policy
    from windrow.train.supervised import Demonstration, supervise

    model = tiny_model("llama", seed, layers=LAYERS, hidden=HIDDEN, heads=HEADS, scale=1.0)
    codec, rng = ChatCodec(tiny_tokenizer()), Random(seed)
    rows = []
    for number in range(WARM_ROWS):
        prompt = codec.begin([Message("user", LETTERS[number % len(LETTERS)])])
        length = min(TOKENS - 1, 1 + int(rng.expovariate(1 / USUAL)))
        said = codec.encode("".join(rng.choices(printable[:95], k=length)))
        answer = np.append(said, codec.stop_token_ids[0])
        learn = np.arange(len(prompt) + len(answer)) >= len(prompt)
        rows.append(Demonstration(np.concatenate([prompt, answer]).astype(np.int32), learn))
    settings = DemonstrationConfig(steps=WARM_STEPS, optimizer=OptimizerConfig(lr=3e-3))
    supervise(Learner(Policy(model), settings.optimizer, MicroConfig()), rows, settings, seed)
    return model


async def ours_learns(seed: int, updates: int = UPDATES, bound: float = 0.0) -> Learnt:
    """The pieces of the RLVR pipeline, without a run folder; with a bound the trainer has a process of its own."""
    import windrow as wr
    from windrow.engines.torch import TorchEngine
    from windrow.tiny import tiny_tokenizer

    codec, devices = wr.ChatCodec(tiny_tokenizer()), wr.ResourceManager(1)

    def make(name: str, on: tuple[int, ...], _: wr.EngineConfig) -> Engine:
        return TorchEngine(name, _model(seed), codec, devices=on, capacity=BATCH)

    engines = wr.Cluster("engine", make, devices, wr.EngineConfig(codec=codec))
    envs = wr.EnvManagerConfig(
        env=Letters, num_env_groups=BATCH // GROUP, group_size=GROUP, sampling=wr.Sampling(max_tokens=TOKENS)
    )
    config = wr.RolloutConfig(rollout_batch_size=BATCH, seed=seed, staleness=bound)
    roles = _trainers(seed, processes=1 if bound else 0)
    try:
        async with wr.RolloutScheduler(config, envs, devices, engines, mode="train") as rollouts:
            return await _updates(rollouts, roles, updates)
    finally:
        roles.close()


def _trainers(seed: int, processes: int) -> "Roles":
    from windrow.train.config import LossConfig, ModelConfig, OptimizerConfig, TinyConfig, TrainConfig
    from windrow.train.local import LocalTrainers
    from windrow.train.roles import Actor
    from windrow.train.team import Source, Trainers

    train = TrainConfig(
        optimizer=OptimizerConfig(lr=LR, betas=(0.9, 0.999)),
        loss=LossConfig(aggregation="token_mean"),
        processes=processes,
    )
    if not processes:
        return LocalTrainers(train, Actor(train, _model(seed), seed=seed, threads=1))
    model = ModelConfig(tiny=TinyConfig(kind="llama", hidden=HIDDEN, layers=LAYERS, heads=HEADS))
    start = _model(seed)
    return Trainers(
        train, Source(model=model, seed=seed, vocabulary=start.config.vocab_size, state=dict(start.state_dict()))
    )


async def _updates(rollouts: "RolloutScheduler", roles: "Roles", updates: int) -> Learnt:
    """Collect, estimate, train, serve, so many times."""
    from windrow.protocol import DataProto
    from windrow.train.config import EstimatorConfig, LossConfig
    from windrow.train.estimate import estimate
    from windrow.train.weights import deliver

    loop = asyncio.get_running_loop()
    seconds, rewards = [], []
    for step in range(updates):
        began = time.perf_counter()
        batch = await rollouts.get_batch(DataProto(meta_info={"global_step": step}), BATCH)
        assert batch is not None, "the tasks have no end"
        assert batch.batch is not None
        rewards.append(float(batch.batch["episode_scores"].mean()))
        batch = estimate(batch, EstimatorConfig(), LossConfig())
        await loop.run_in_executor(None, roles.actor.train, batch)
        packed = await loop.run_in_executor(None, roles.pack, step + 1)
        await rollouts.suspend()
        await deliver(packed, rollouts.update_weights)
        seconds.append(time.perf_counter() - began)
    return Learnt(seconds=tuple(seconds), rewards=tuple(rewards))


def trl_learns(seed: int, updates: int = UPDATES) -> Learnt:
    """The same with TRL's trainer, told to do nothing beside."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    from datasets import Dataset  # type: ignore[import-untyped]  # it has no types
    from transformers import PrinterCallback, TrainerCallback
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    from windrow.tiny import tiny_tokenizer

    ends: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:  # noqa: ANN401 -- whatever it is told
            ends.append(time.perf_counter())

    def reward(completions: list[Any], **_: Any) -> list[float | None]:  # noqa: ANN401 -- as above
        return [worth(said[0]["content"]) for said in completions]

    asked = [LETTERS[number % len(LETTERS)] for number in range(updates * BATCH // GROUP)]
    data = Dataset.from_dict({"prompt": [[{"role": "user", "content": letter}] for letter in asked]})
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        settings = GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=BATCH,
            num_generations=GROUP,
            max_completion_length=TOKENS,
            max_steps=updates,
            learning_rate=LR,
            lr_scheduler_type="constant",
            weight_decay=0.0,
            beta=0.0,
            temperature=1.0,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            seed=seed,
        )
        trainer = GRPOTrainer(
            model=_model(seed).train(),
            processing_class=tiny_tokenizer(),
            reward_funcs=reward,
            args=settings,
            train_dataset=data,
            callbacks=[Clock()],
        )
        trainer.remove_callback(PrinterCallback)  # standard output is ours
        ends.append(time.perf_counter())
        trainer.train()
    rewards = [each["reward"] for each in trainer.state.log_history if "reward" in each]
    seconds = [after - before for before, after in pairwise(ends)]
    return Learnt(seconds=tuple(seconds), rewards=tuple(rewards))
