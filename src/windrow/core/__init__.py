"""The decisions of the rollout scheduler, pure: events and a time in, commands out.

Nothing here waits, reads a clock, throws dice, logs or touches a token. `machine.py` is the way in.
"""
