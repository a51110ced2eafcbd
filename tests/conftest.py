"""What holds for all tests."""

from hypothesis import settings

# Machines on which tests run are busy: how long one example took says nothing.
settings.register_profile("delaywheel", deadline=None)
settings.load_profile("delaywheel")
