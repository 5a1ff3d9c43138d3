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
    found = check_images(source, network, groups=groups, text=text)
    notices, findings = [*found.notices, *found.audit.notices], found.audit.findings
    output.print_notes(found.refused, notices)
    names = dict(enumerate(found.names)) | {None: None}
    content = {
        "images": len(found.names),
        "classes": found.classes,
        "findings": [
            asdict(one) | {"image": names[one.row], "other_image": names[one.other]}
            for one in findings
        ],
        "refused": output.refused_as_json(found.refused),
        "notices": notices,
        "advice": [asdict(one) for one in found.advice],
    }
    classes = "1 class" if found.classes == 1 else f"{found.classes:,} classes"
    faults = sum(finding.kind in FAULTS for finding in findings)
    counts = [plural(faults, "fault"), f"{len(findings) - faults:,} worth a look"]
    summary = ", ".join(counts) if findings else "nothing found"
    output.show(json, content, f"{plural(len(found.names), 'image')} of {classes}: {summary}.")
    for kind, count in Counter(finding.kind for finding in findings if not json).items():
        echo(f"\n{HEADINGS[kind]} ({count:,})")
        sentences = [finding.sentence for finding in found.audit.of(kind)]
        for sentence in output.shortened(sentences, top, " (--top)."):
            echo(f"  {output.printable(sentence)}")
    if found.advice and not json:
        echo("\nAdvice")
        for one in found.advice:
            echo(f"  {output.printable(one.sentence)}")
    raise Exit(1 if faults else 0)
