"""What remains of a run when its process is gone: the run folder and its checkpoints."""
