"""Tests that are not played over hosts, each with its reason."""

NOT_NEXT_DOOR = {
    "test_after_the_last_scheduler_the_cluster_has_new_engines_for_the_next": (
        "engines in hosts end with the last scheduler of their cluster, and the next one is refused in words"
    ),
}
"""Not over hosts on this event loop."""
NOT_ON_RAY = NOT_NEXT_DOOR | {
    "test_two_weight_updates_at_once_end_with_the_newer_weights_and_nobody_holding": (
        "weights are put into the object store in threads of the driver, so either of two updates that are asked for "
        "in the same moment may come first, and the older one is refused if it comes second"
    ),
}
"""Nor over real Ray actors."""
