"""A module that is never loaded to its end."""

import time

time.sleep(1000)
