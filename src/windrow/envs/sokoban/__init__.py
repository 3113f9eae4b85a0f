"""Sokoban: `room` is what it looks like, `planning` solves it, `making` makes rooms, `env` is the game."""

from windrow.envs.sokoban.env import SokobanEnv

__all__ = ["SokobanEnv"]
