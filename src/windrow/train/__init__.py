"""Trajectories become gradients: estimators, losses, roles with weights of their own, and how weights leave them."""
