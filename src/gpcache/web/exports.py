"""The model of a workspace to take away: a model folder, ONNX, its card, and lines to copy."""

from __future__ import annotations

import io
import tempfile
import zipfile
from pathlib import Path

from gpcache.encoders.lite import LiteEncoder
from gpcache.model import files as model_files
from gpcache.model.onnx import export_image_onnx, export_onnx
from gpcache.model.training_images import Example, Training
from gpcache.support.array_folders import CARD
from gpcache.web.editor import Editor
from gpcache.web.opening import Opened


def model_zip(opened: Opened, editor: Editor) -> bytes:
    """The model folder as a zip: unpacked, it is what `gpcache predict` takes."""
    stream = io.BytesIO()
    with tempfile.TemporaryDirectory() as temporary:
        name = f"{editor.document.name}.gpc"
        folder = Path(temporary) / "model"
        _write(opened, editor, folder)
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(folder.iterdir()):
                archive.write(file, f"{name}/{file.name}")
    return stream.getvalue()


def card(opened: Opened, editor: Editor) -> str:
    """The model card, as Markdown."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        _write(opened, editor, folder)
        return (folder / CARD).read_text(encoding="utf-8")


def onnx(opened: Opened, editor: Editor) -> bytes:
    """Pixels in and probabilities out with the encoder lite; the head on features with others."""
    model = editor.learner.ready()
    if isinstance(opened.encoder, LiteEncoder):
        return export_image_onnx(model, opened.encoder)
    return export_onnx(model, encoder_fingerprint=opened.encoder.fingerprint)


def snippets(name: str, address: str, token: str) -> dict[str, str]:
    """How to ask the same model from elsewhere."""
    return {
        "cli": f"gpcache predict {name}.gpc photo.jpg --top 3 --why",
        "python": "from gpcache import ImageClassifier\n\n"
        f'model = ImageClassifier.load("{name}.gpc")\n'
        'for answer in model.predict(["photo.jpg"]):\n'
        "    print(answer.label, answer.probability, answer.rejected)",
        "curl": f"curl -H 'Authorization: Bearer {token}' -H 'Content-Type: image/jpeg' "
        f"--data-binary @photo.jpg {address}/v1/predict",
    }


def _write(opened: Opened, editor: Editor, folder: Path) -> None:
    learner, document, encoder = editor.learner, editor.document, opened.encoder
    model = learner.ready()
    pictures = {photo.hash: opened.workspace.get(photo.hash).picture for photo in learner.photos}
    content = model_files.Content(
        model=model,
        encoder=model_files.EncoderFacts(
            document.encoder, encoder.fingerprint, encoder.dim, encoder.logit_scale
        ),
        templates=None if document.templates is None else list(document.templates),
        prompts=document.contents.prompts(document.templates),
        views=document.views,
        examples=[
            Example(photo.name, str(photo.label), photo.hash, photo.group)
            for photo in learner.photos
        ],
        training=Training(source=f"the workspace {document.name}", refused=list(document.refused)),
        thumbnails=pictures,
    )
    held_out = learner.held_out()
    model_files.write(content, folder, None if held_out is None else held_out.evaluation())
