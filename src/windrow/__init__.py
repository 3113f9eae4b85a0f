"""Windrow collects trajectories from many environments at once and feeds them to a trainer.

Importing this package is quick: nothing heavy is loaded until it is used.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
