"""`gpcache fetch`: download an encoder."""

from typing import Annotated

from typer import Argument

import gpcache
from gpcache.cli import options, output

ENCODER = "clip-rn50, clip-vit-b-16, open_clip:MODEL/WEIGHTS or hf:MODEL."


def fetch(
    encoder: Annotated[str, Argument(metavar="ENCODER", help=ENCODER)],
    json: options.JsonOption = False,
    _verbose: options.VerboseOption = False,
) -> None:
    """Download an encoder to this machine.

    A command that uses a saved model never downloads the encoder. Check who made the model, then
    fetch the encoder that it names.

    **Examples**

    - `gpcache fetch clip-vit-b-16`
    - `gpcache fetch hf:openai/clip-vit-base-patch32`
    """
    network = gpcache.load_encoder(encoder, device="cpu")
    content = {"encoder": encoder, "fingerprint": network.fingerprint, "dim": network.dim}
    output.show(json, content, f"{encoder}: on this machine, {network.dim} features per image.")
