"""Collect batches from an environment of your own with a tiny language model: no GPU, no key, no download."""

import asyncio

import windrow as wr
from windrow.engines.torch import TorchEngine
from windrow.tiny import tiny_model, tiny_tokenizer


class Shout:
    """Three turns; each is worth the share of capital letters in what the policy says."""

    async def start(self, task: wr.Task) -> str:
        self.turns = 0
        return f"task {task.ordinal}: shout"

    async def step(self, action: str) -> wr.Step:
        self.turns += 1
        reward = sum(letter.isupper() for letter in action) / max(1, len(action))
        return wr.Step(observation="louder", reward=reward, terminated=self.turns == 3)

    async def close(self) -> None: ...


async def main() -> None:
    codec, devices = wr.ChatCodec(tiny_tokenizer()), wr.ResourceManager(1)
    config = wr.EngineConfig(codec=codec)
    engines = wr.Cluster(
        "infer", lambda name, on, _: TorchEngine(name, tiny_model(), codec, devices=on), devices, config
    )
    envs = wr.EnvManagerConfig(env=Shout, num_env_groups=4, group_size=4, sampling=wr.Sampling(max_tokens=12))
    async with wr.RolloutScheduler(
        wr.RolloutConfig(rollout_batch_size=16), envs, devices, engines, mode="train"
    ) as rollouts:
        for step in range(3):
            batch = await rollouts.get_batch(wr.DataProto(meta_info={"global_step": step}), batch_size=16)
            print(step, batch.batch["input_ids"].shape, f"mean score {batch.batch['episode_scores'].mean():.3f}")


asyncio.run(main())
