"""`gpcache fetch`: download an encoder."""

from typing import Annotated

import typer

from gpcache.cli.options import JsonOption, VerboseOption, print_json, printable


def fetch(
    encoder: Annotated[
        str,
        typer.Argument(
            metavar="ENCODER", help="clip-rn50, clip-vit-b-16, open_clip:MODEL/WEIGHTS or hf:MODEL."
        ),
    ],
    json: JsonOption = False,
    _verbose: VerboseOption = False,
) -> None:
    """Download an encoder to this machine.

    Commands that use a saved model never download its encoder. Check who made the model, then fetch
    the encoder that it names.

    **Examples**

    - `gpcache fetch clip-vit-b-16`

    - `gpcache fetch hf:openai/clip-vit-base-patch32`
    """
    from gpcache.encoders import load_encoder

    found = load_encoder(encoder, device="cpu")
    if json:
        print_json({"encoder": encoder, "fingerprint": found.fingerprint, "dim": found.dim})
        return
    typer.echo(printable(f"{encoder}: on this machine, {found.dim} features per image."))
