"""Switches off the telemetry of the packages that gpcache uses."""

import os

# Packages read these when they are imported, and every process that is started inherits them.
SWITCHES = {
    "ORT_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "DO_NOT_TRACK": "1",
}


def disable_telemetry() -> None:
    """Set the switches of all packages; `import gpcache` calls this before any of them."""
    os.environ.update(SWITCHES)
