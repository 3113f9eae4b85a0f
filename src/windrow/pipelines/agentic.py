"""Reinforcement learning on episodes of many turns.

The loop below is the algorithm. With `rollout.staleness` 0 generation waits for training, and every batch is sampled by
the weights that it trains; above 0 it goes on meanwhile, within that bound.
"""

from windrow.pipelines.training import Outcome, Training


async def train_agent(run: Training) -> Outcome:
    """Train a policy until its steps are done, its success is reached, or no task is left."""
    async with run:
        for step in run.steps():
            await run.suspend()
            await run.update_weights(step)
            await run.expand()
            await run.save(step)
            await run.validate(step)
            if run.is_over(step) or (batch := await run.get_batch(step)) is None:
                break
            await run.shrink()
            batch = await run.estimate(batch)
            await run.train(step, batch)
        return await run.outcome()
