"""Clusters of workers and the devices they sit on."""
