"""Imports the packages of optional extras, or says in one sentence which extra to install."""

from importlib import import_module
from types import ModuleType

from gpcache.errors import MissingExtraError


def require(module: str, extra: str, *, purpose: str = "This") -> ModuleType:
    """Import `module`, which the extra `gpcache[extra]` installs, with its telemetry off.

    `purpose` opens the sentence of the error: "Reading HEIC" gives "Reading HEIC needs
    pillow_heif, which is not installed: pip install 'gpcache[heif]'."
    """
    try:
        imported = import_module(module)
    except ModuleNotFoundError as error:
        # A module that is installed but lacks a dependency is another problem; its own message
        # is more precise.
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        package = module.partition(".")[0]
        raise MissingExtraError(
            f"{purpose} needs {package}, which is not installed: pip install 'gpcache[{extra}]'.",
            name=module,
        ) from None
    # onnxruntime has this switch too, for one that was imported before gpcache.
    if hasattr(imported, "disable_telemetry_events"):
        imported.disable_telemetry_events()
    return imported
