"""Collecting without training: batch after batch, for whoever learns from them later."""

from collections.abc import AsyncIterator

from windrow.protocol import DataProto
from windrow.rollout.scheduler import RolloutScheduler


async def collect(rollouts: RolloutScheduler, batches: int, size: int) -> AsyncIterator[DataProto]:
    """Batch after batch, until there are so many or no task is left."""
    for step in range(batches):
        batch = await rollouts.get_batch(DataProto(meta_info={"global_step": step}), size)
        if batch is None:
            return
        yield batch
        if batch.meta_info["last"]:
            return
