"""An environment of your own, and batches collected with it: what docs/your_own_environment.md builds step by step."""

import asyncio

import windrow as wr
from windrow.engines.torch import TorchEngine
from windrow.envs.drawing import draw
from windrow.tiny import tiny_model, tiny_tokenizer

WORDS = ("anchor", "basket", "candle", "dragon", "engine", "forest", "garden", "hammer", "island", "jacket")


class Caesar:
    """A word whose letters were moved along the alphabet is to be read."""

    def __init__(self, tries: int = 3) -> None:
        self.tries = tries

    async def start(self, task: wr.Task) -> str:
        self.word, by = draw(task, lambda rng: (rng.choice(WORDS), rng.randint(1, 25)), str)
        secret = "".join(chr((ord(letter) - 97 + by) % 26 + 97) for letter in self.word)
        return f"'{secret}' is a word whose letters were moved along the alphabet; which?"

    async def step(self, action: str) -> wr.Step:
        self.tries -= 1
        right = action.lower().split()[-1:] == [self.word]
        return wr.Step(observation="yes" if right else "no", reward=float(right), terminated=right or self.tries <= 0)

    async def close(self) -> None: ...

    def solve(self) -> str:
        return self.word


async def main() -> None:
    codec, devices = wr.ChatCodec(tiny_tokenizer()), wr.ResourceManager(1)
    config = wr.EngineConfig(codec=codec)
    engines = wr.Cluster(
        "infer", lambda name, on, _: TorchEngine(name, tiny_model(), codec, devices=on), devices, config
    )
    envs = wr.EnvManagerConfig(env=Caesar, num_env_groups=4, group_size=4, sampling=wr.Sampling(max_tokens=12))
    async with wr.RolloutScheduler(
        wr.RolloutConfig(rollout_batch_size=16), envs, devices, engines, mode="train"
    ) as rollouts:
        for step in range(2):
            batch = await rollouts.get_batch(wr.DataProto(meta_info={"global_step": step}), batch_size=16)
            print(step, len(batch.batch["traj_id"]), f"episodes, mean score {batch.batch['episode_scores'].mean():.3f}")


if __name__ == "__main__":
    asyncio.run(main())
