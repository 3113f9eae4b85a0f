"""Tests that are not played over hosts next door, each with its reason."""

LEFT_OUT = {
    "test_after_the_last_scheduler_the_cluster_has_new_engines_for_the_next": (
        "engines in hosts end with the last scheduler of their cluster, and the next one is refused in words"
    ),
}
