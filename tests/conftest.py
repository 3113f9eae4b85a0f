"""What holds for every test."""

from hypothesis import settings

# a busy machine is no failure, and the same code gives the same verdict twice
settings.register_profile("windrow", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("windrow")
