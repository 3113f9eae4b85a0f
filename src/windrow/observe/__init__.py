"""What can be seen of a run: one table of metrics."""
