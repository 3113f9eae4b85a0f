"""Looks at an environment for the usual mistakes, by playing it."""
