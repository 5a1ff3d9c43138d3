"""The errors that gpcache raises on purpose; each message is a sentence for the user."""


class GPCacheError(Exception):
    """The base of all of them: the command line turns it into exit code 2."""


class DataError(GPCacheError, ValueError):
    """The input or a parameter cannot be used; a ValueError, as scikit-learn's contract asks."""


class DiskFullError(DataError):
    """There is no room left to write what was asked for."""


class ImageRefusedError(DataError):
    """An image breaks the decoding policy; `reason` says how, without naming the file."""

    def __init__(self, reason: str, *, name: str = "The image") -> None:
        super().__init__(f"{name} was refused: {reason}.")
        self.reason = reason


class StoreError(GPCacheError):
    """A feature store is missing, damaged, or made by another encoder."""


class EncoderError(GPCacheError):
    """An encoder cannot be found, loaded, or matched with the features at hand."""


class ModelFileError(GPCacheError):
    """A saved model is missing, damaged, or of an unknown version."""


class NumericalError(GPCacheError):
    """The mathematics cannot go on: a factorisation failed or the memory does not suffice."""


class ProtocolError(GPCacheError):
    """An evaluation would break its own rules, such as tuning on test data."""


class MissingExtraError(GPCacheError, ImportError):
    """A package that belongs to an extra of gpcache is not installed."""
