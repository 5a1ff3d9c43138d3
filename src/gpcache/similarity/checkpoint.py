"""Checkpoint: the state after the last complete epoch, in one file that is written atomically."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from gpcache.errors import ModelFileError
from gpcache.support.files import write_atomic

_KINDS = ("weights", "momenta")


@dataclass
class Progress:
    """The state after complete epochs: their losses, the weights and the momenta."""

    weights: tuple[Tensor, ...]
    momenta: tuple[Tensor, ...] = ()
    history: list[float] = field(default_factory=list)


class Checkpoint:
    """A file that `learn_projection` continues from, and writes after every epoch."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def read(self, key: str) -> Progress | None:
        """The state of the run with this key, or None before its first epoch."""
        if not self.path.exists():
            return None
        try:
            with safe_open(self.path, "pt") as file:
                notes = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            history = json.loads(notes["history"])
            known = notes["key"]
        except (OSError, SafetensorError, KeyError, ValueError, RecursionError):
            raise ModelFileError(
                f"The checkpoint {str(self.path)!r} is damaged: remove it to start again."
            ) from None
        if known != key:
            raise ModelFileError(
                f"The checkpoint {str(self.path)!r} belongs to other images or options: "
                "give those, or remove it to start again."
            )
        weights, momenta = (
            tuple(tensors[name] for name in sorted(tensors) if name.startswith(kind))
            for kind in _KINDS
        )
        return Progress(weights, momenta, history)

    def write(self, key: str, progress: Progress) -> None:
        """Replace the saved state."""
        tensors = {
            f"{kind}{number}": tensor.detach().cpu().contiguous()
            for kind in _KINDS
            for number, tensor in enumerate(getattr(progress, kind))
        }
        notes = {"key": key, "history": json.dumps(progress.history)}
        write_atomic(self.path, save(tensors, metadata=notes))

    def remove(self) -> None:
        """Remove the file of a finished run."""
        self.path.unlink(missing_ok=True)
