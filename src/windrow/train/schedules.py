"""The learning rate at each optimizer step, as a function of the step alone.

Promises: nothing is remembered, so a run that is resumed at step n goes on with the rate that step n always has.
"""

import math

from windrow.train.config import OptimizerConfig


def learning_rate(config: OptimizerConfig, step: int) -> float:
    """Of the optimizer step after `step` others: up in equal parts, then as the schedule says, then the floor."""
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    return config.lr * _share(config, step - config.warmup_steps)


def _share(config: OptimizerConfig, step: int) -> float:
    """Of the highest rate, so many steps after the warm-up."""
    if config.schedule == "constant" or config.decay_steps is None:
        return 1.0
    done = min(1.0, step / config.decay_steps)
    left = 1.0 - done if config.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return config.floor_share + (1.0 - config.floor_share) * left
