"""The schedulers that ours is compared with, each as small as it can be and still run on every workload.

Promises: they hear the same events and give the same orders as the machine, so the world cannot tell them
apart. They know nothing of spares, filters, tags' weights or validation, which can only be to their advantage.
"""

from windrow.sim.rivals.barrier import Barrier
from windrow.sim.rivals.fixed_queues import FixedQueues
from windrow.sim.rivals.group_unit import GroupUnit

__all__ = ["Barrier", "FixedQueues", "GroupUnit"]
