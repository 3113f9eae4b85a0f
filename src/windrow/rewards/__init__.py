"""Rewards: what an episode was worth. `protocol` says what one promises; the shipped ones stand beside it."""
