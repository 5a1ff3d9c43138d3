"""Device and dtype for "auto", and whether the memory is sufficient."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import torch

from gpcache.errors import DataError, NumericalError
from gpcache.support.out_of_memory import is_out_of_memory

# Used if the free memory is unknown: no estimate is larger.
UNKNOWN_MEMORY = 2**62
# Up to this many bytes the free memory is not read: that takes as long as 2 % of a small fit, and
# an allocation that fails is reported in a sentence as well.
LITTLE_MEMORY = 50_000_000

_DTYPES = {"float32": torch.float32, "float64": torch.float64}


def resolve_device(device: str | torch.device = "auto") -> torch.device:
    """Turn "auto" or a torch device into a device that can be used here.

    A CUDA device always comes back with its index, so that it equals its tensors' device.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError):
        raise DataError(
            f"device must be 'auto' or a torch device such as 'cpu' or 'cuda:0', got {device!r}."
        ) from None
    if resolved.type == "cuda":
        return _usable_cuda(resolved)
    if resolved.type == "mps" and not torch.backends.mps.is_available():
        raise DataError("device='mps' is not available here: use device='cpu' or device='auto'.")
    return resolved


def _usable_cuda(device: torch.device) -> torch.device:
    if not torch.cuda.is_available():
        raise DataError(
            f"device='{device}' is not available, torch finds no CUDA GPU here: "
            "use device='cpu' or device='auto'."
        )
    index = torch.cuda.current_device() if device.index is None else device.index
    count = torch.cuda.device_count()
    if index >= count:
        raise DataError(f"device='{device}' is not available, the highest is 'cuda:{count - 1}'.")
    return torch.device("cuda", index)


def resolve_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """Turn "auto" or a name into a dtype: float64 on a CPU, float32 on an accelerator.

    Accelerators are many times slower in float64, or (MPS) have none.
    """
    if dtype == "auto":
        return torch.float64 if device.type == "cpu" else torch.float32
    resolved = _DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if resolved is None or resolved not in _DTYPES.values():
        raise DataError(f"dtype must be 'auto', 'float32' or 'float64', got {dtype!r}.")
    if resolved == torch.float64 and device.type == "mps":
        raise DataError("dtype='float64' does not exist on 'mps': use dtype='float32'.")
    return resolved


def has_memory(required: int, device: torch.device) -> bool:
    """Whether `device` has this many bytes free. At most `LITTLE_MEMORY` is not compared."""
    return required <= LITTLE_MEMORY or required <= free_memory(device)


def ensure_memory(required: int, device: torch.device, *, what: str, remedy: str) -> None:
    """Raise NumericalError if `required` bytes are more than `device` has free.

    `what` is the subject of the sentence ("The exact GP over 200,000 keys"), `remedy` the
    sentence that follows it ("Use n_groups=64.").
    """
    if not has_memory(required, device):
        free = free_memory(device)
        raise NumericalError(
            f"{what} needs {format_bytes(required)}, "
            f"but {device} has {format_bytes(free)} free. {remedy}"
        )


@contextmanager
def explained_memory_errors(what: str, remedy: str) -> Iterator[None]:
    """Turn an out-of-memory error of torch or numpy into NumericalError.

    `what` and `remedy` are as in `ensure_memory`. An estimate can be too low, and another process
    can take the memory after the check.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise NumericalError(f"{what} ran out of memory. {remedy}") from None
        raise


def format_bytes(size: int) -> str:
    """Format a number of bytes in decimal units: 320_000_000_000 → "320.0 GB"."""
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            return f"{size / factor:,.1f} {unit}"
    return f"{size} bytes"


def free_memory(device: torch.device) -> int:
    """Bytes that can still be allocated on `device`; UNKNOWN_MEMORY if this is unknown."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # Memory that the caching allocator holds but does not use is free.
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + unused)
    if device.type in ("cpu", "mps"):  # mps shares the memory of the host
        return min(_system_memory(), _cgroup_memory(), _address_space())
    return UNKNOWN_MEMORY


def peak_memory() -> int:
    """Bytes that this process has held at most; 0 where the system does not tell."""
    try:
        import resource  # Windows has none
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _system_memory(meminfo: Path = Path("/proc/meminfo")) -> int:
    available = _read_field(meminfo, "MemAvailable:")
    if available is not None:
        return available * 1024
    # Not Linux: the free pages, or all pages as an upper bound if those are unknown (macOS).
    for name in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"):
        try:
            return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")
        except (AttributeError, OSError, ValueError):
            continue
    return UNKNOWN_MEMORY


def _address_space(statm: Path = Path("/proc/self/statm")) -> int:
    """Bytes left below the limit of this process (`ulimit -v`, RLIMIT_AS)."""
    try:
        import resource  # Windows has none
    except ImportError:
        return UNKNOWN_MEMORY
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    pages = _read_field(statm)
    if limit == resource.RLIM_INFINITY or pages is None:
        return UNKNOWN_MEMORY
    return max(0, limit - pages * resource.getpagesize())


def _cgroup_memory(
    root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")
) -> int:
    """Bytes left below the tightest limit that a container or a batch system has set."""
    remaining = UNKNOWN_MEMORY
    for folder in _cgroup_folders(root, membership):
        for limit_name, usage_name, cache_name in (
            ("memory.max", "memory.current", "inactive_file"),  # version 2
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),  # version 1
        ):
            limit = _read_field(folder / limit_name)
            usage = None if limit is None else _read_field(folder / usage_name)
            if limit is not None and usage is not None:
                # The kernel drops idle file pages before it refuses memory.
                idle = _read_field(folder / "memory.stat", cache_name) or 0
                remaining = min(remaining, max(limit - usage + idle, 0))
    return remaining


def _cgroup_folders(root: Path, membership: Path) -> Iterator[Path]:
    """The folders of this process's memory cgroup and its parents, some of which may not exist."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base = root / "memory" if controllers else root
        inside = PurePosixPath(path.lstrip("/"))
        yield from (base / folder for folder in (inside, *inside.parents))


def _read_field(file: Path, name: str = "") -> int | None:
    """The integer after `name` in a file of the kernel, or its only one; None if it has none."""
    try:
        text = file.read_text()
    except OSError:
        return None
    match = re.search(rf"^{re.escape(name)}\s*(\d+)", text, re.MULTILINE)
    return int(match[1]) if match else None
