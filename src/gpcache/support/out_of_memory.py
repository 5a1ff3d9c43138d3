"""Recognises errors that mean that memory has run out; needs no torch."""

import errno

# What torch, the dynamic linker and libraries in Rust say.
_SIGNS = (
    "DefaultCPUAllocator", "out of memory", "annot allocate memory", "failed to map segment",
    "bad_alloc",
)  # fmt: skip


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or one that it was raised from, means that memory has run out."""
    while error is not None:
        if isinstance(error, MemoryError):
            return True
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            return True
        # On a CPU torch raises a plain RuntimeError, which only its message identifies.
        plain = isinstance(error, RuntimeError | ImportError)
        if plain and any(sign in str(error) for sign in _SIGNS):
            return True
        error = error.__cause__ or error.__context__
    return False
