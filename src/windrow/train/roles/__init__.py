"""Those who have weights of their own: actor, reference, critic, reward model.

Promises: each is optional, each has its own device, each can be used without the others. All are synchronous and take
seconds; call them off the event loop. A role adds columns to a batch or learns from it, never both.
"""

from windrow.train.roles.actor import Actor
from windrow.train.roles.critic import Critic
from windrow.train.roles.reference import Reference
from windrow.train.roles.reward_model import RewardModel
from windrow.train.roles.self_test import Finding, self_test

__all__ = ["Actor", "Critic", "Finding", "Reference", "RewardModel", "self_test"]
