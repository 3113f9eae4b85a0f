"""Reinforcement learning on questions whose answers can be verified, of several domains at once.

Each domain has its environment, its weight and its reward; answers are judged one by one as they come, and a batch is
made of whatever groups are complete, so a slow domain holds up nobody: shares are kept over a window of groups, not in
each batch. Groups whose answers are all right or all wrong teach nothing; `filter: varied` has them replaced.
"""

from windrow.pipelines.training import Outcome, Training


async def train_on_answers(run: Training) -> Outcome:
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
