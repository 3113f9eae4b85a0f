"""How many cores arithmetic may use.

A sum that is cut otherwise is rounded otherwise: whoever wants the same numbers again chooses, and takes no default.
"""

import torch


def use_threads(threads: int | None) -> None:
    """In the thread that calls this; none: as it was."""
    if threads is not None and torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
