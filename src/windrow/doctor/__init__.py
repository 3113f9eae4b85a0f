"""What would be in the way of a run on this machine, or on a cluster, and what to do about it.

Promises: nothing is changed, installed or downloaded, and nobody is asked but this machine and a cluster that was
named. Every check ends with a finding, also when what it looks at is missing or broken.
"""
