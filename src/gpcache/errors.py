"""The errors that gpcache raises on purpose; each message is a sentence for the user."""


class GPCacheError(Exception):
    """Base class of all errors that gpcache raises on purpose."""


class DataError(GPCacheError, ValueError):
    """The input or a parameter cannot be used; also a `ValueError`, as scikit-learn expects."""


class DiskFullError(DataError):
    """The disk is full."""


class ImageRefusedError(DataError):
    """An image breaks the decoding policy.

    Parameters
    ----------
    reason : str
        What is wrong, without the name of the file.
    name : str, default="The image"
        Name of the image.
    """

    def __init__(self, reason: str, *, name: str = "The image") -> None:
        super().__init__(f"{name} was refused: {reason}.")
        self.reason = reason


class StoreError(GPCacheError):
    """A feature store is missing, damaged, or made by another encoder."""


class EncoderError(GPCacheError):
    """An encoder cannot be found or loaded, or does not match the features."""


class ModelFileError(GPCacheError):
    """A saved model is missing, damaged, or of an unknown version."""


class NumericalError(GPCacheError):
    """A computation failed: a factorisation broke down, or the memory is too small."""


class ProtocolError(GPCacheError):
    """An evaluation would break its protocol, for example by tuning on test data."""


class MissingExtraError(GPCacheError, ImportError):
    """A package of an extra of gpcache is not installed; also an `ImportError`."""
