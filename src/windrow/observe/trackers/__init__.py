"""Trackers: services and files of others that draw the curves of a run.

Promises: a tracker can never stop a run, hold it up or fail it. What it needs is looked for before the run begins, so
that a missing package is an error at once rather than an empty page at the end; whatever goes wrong later is said
once, and counted. What a run measures is in its folder in any case.
"""

from windrow.observe.trackers.config import TrackerConfig
from windrow.observe.trackers.couriers import Trackers, open_trackers
from windrow.observe.trackers.kinds import check_installed
from windrow.observe.trackers.protocol import Occasion, Tracker

__all__ = ["Occasion", "Tracker", "TrackerConfig", "Trackers", "check_installed", "open_trackers"]
