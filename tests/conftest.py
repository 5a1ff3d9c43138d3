"""Settings that all tests share."""

from hypothesis import settings

# A slow machine is not a failure: timings live in benchmarks/.
settings.register_profile("gpcache", deadline=None)
settings.load_profile("gpcache")
