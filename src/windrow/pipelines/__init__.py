"""Whole algorithms, each a loop that can be read from top to bottom."""
