"""Environments: what a policy acts in. `protocol` says what one promises; the shipped ones stand beside it."""
