"""`gpcache check`: find problems in labelled images before training."""

from collections import Counter
from dataclasses import asdict
from typing import Annotated

from typer import Exit, Option, echo

import gpcache
from gpcache.cli import options, output

HEADINGS = {
    "leak": "Copies in two classes or groups",
    "label": "Labels that are almost certainly wrong",
    "duplicate": "Copies",
    "near-duplicate": "Near copies",
    "look": "Labels worth a look: the image is hard, or its label is wrong",
    "harmful": "Images that make the others worse",
    "outlier": "Unlike all other images",
}
GROUPS = (
    "Which photos are one burst: those with the same group in a list ('list'), those in the same "
    "innermost folder ('folder'), or none ('none')."
)
TopOption = Annotated[int, Option(min=1, metavar="K", help="Show K findings of each kind.")]


def check(
    images: options.ImagesArgument,
    encoder: options.EncoderOption = "lite",
    groups: Annotated[str, Option(help=GROUPS)] = "list",
    top: TopOption = 10,
    text: Annotated[bool, Option(help="Use the class names.")] = True,
    follow: options.FollowOption = False,
    device: options.DeviceOption = "auto",
    json: options.JsonOption = False,
    _verbose: options.VerboseOption = False,
) -> None:
    """Find wrong labels, copies, outliers and harmful images.

    Every image is predicted by a model that has not seen it. The exit code is 1 if a label is
    almost certainly wrong or an image is there twice, and 0 if images are only worth a look.

    **Examples**

    - `gpcache check photos/`
    - `gpcache check list.csv --top 30 --json`
    """
    from gpcache.images.records import plural
    from gpcache.images.sources import open_source
    from gpcache.model.audit import FAULTS
    from gpcache.model.audit.images import check_images

    source = open_source(images.resolve(), follow=follow)
    network = gpcache.load_encoder(encoder, device=device)
    checked = check_images(source, network, groups=groups, text=text)
    notices, findings = [*checked.notices, *checked.audit.notices], checked.audit.findings
    output.print_notes(checked.refused, notices)
    names = dict(enumerate(checked.names)) | {None: None}
    content = {
        "images": len(checked.names),
        "classes": checked.classes,
        "findings": [
            asdict(one) | {"image": names[one.row], "other_image": names[one.other]}
            for one in findings
        ],
        "refused": output.refused_as_json(checked.refused),
        "notices": notices,
        "advice": [asdict(one) for one in checked.advice],
    }
    classes = "1 class" if checked.classes == 1 else f"{checked.classes:,} classes"
    faults = sum(finding.kind in FAULTS for finding in findings)
    counts = [plural(faults, "fault"), f"{len(findings) - faults:,} worth a look"]
    summary = ", ".join(counts) if findings else "nothing found"
    output.show(json, content, f"{plural(len(checked.names), 'image')} of {classes}: {summary}.")
    for kind, count in Counter(finding.kind for finding in findings if not json).items():
        echo(f"\n{HEADINGS[kind]} ({count:,})")
        sentences = [finding.sentence for finding in checked.audit.of(kind)]
        for sentence in output.shortened(sentences, top, " (--top)."):
            echo(f"  {output.printable(sentence)}")
    if checked.advice and not json:
        echo("\nAdvice")
        for advice in checked.advice:
            echo(f"  {output.printable(advice.sentence)}")
    raise Exit(1 if faults else 0)
