"""`gpcache evaluate`: how good a model is on labelled images that it has not seen."""

from pathlib import Path
from typing import Annotated

import typer

from gpcache.cli.options import (
    DeviceOption,
    FollowOption,
    ImagesArgument,
    JsonOption,
    ModelArgument,
    RejectOption,
    VerboseOption,
    check_file,
    print_json,
    print_rows,
)


def evaluate(
    model: ModelArgument,
    images: ImagesArgument,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a report as one HTML file.")
    ] = None,
    plots: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write its plots as PNG and SVG.")
    ] = None,
    reject: RejectOption = 0.05,
    coverage: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            max=1,
            help="Also say how many of the most confident answers, so large a share of all, are "
            "right.",
        ),
    ] = None,
    unknown: Annotated[
        Path | None,
        typer.Option(
            metavar="IMAGES", help="Images of none of the classes: how many of them are refused?"
        ),
    ] = None,
    follow: FollowOption = False,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    _verbose: VerboseOption = False,
) -> None:
    """Compare a model's answers with the labels of unseen images.

    Exit code 1 if some could not be read: they are listed on stderr and not counted.

    **Examples**

    - `gpcache evaluate pets.gpc test_photos/ --report report.html`

    - `gpcache evaluate pets.gpc test.csv --coverage 0.9 --unknown not_pets/ --json`
    """
    from gpcache.cli.tables import doubts, figures, listed, print_refused
    from gpcache.images.records import Refused
    from gpcache.images.sources import open_source
    from gpcache.model.classifier import ImageClassifier

    if report is not None:
        check_file(report)
    classifier = ImageClassifier.load(model, device=device)
    refused: list[Refused] = []
    source = open_source(images.resolve(), follow=follow)
    foreign = None if unknown is None else open_source(unknown.resolve(), follow=follow)
    found = classifier.evaluate(source, reject=reject, unknown=foreign, refused=refused)
    if report is not None or plots is not None:
        from gpcache.model.report import save_plots, write_report
        from gpcache.model.report.build import build_report

        made = build_report(classifier, found, images.resolve(), refused)
        if report is not None:
            write_report(made, report)
        if plots is not None:
            save_plots(made, plots)
    print_refused(refused)
    if json:
        asked = {} if coverage is None else {f"{coverage:g}": found.accuracy_at(coverage)}
        told = found.summary()
        told["accuracy_at_coverage"] |= asked
        print_json(told | {"refused": listed(refused)})
        raise typer.Exit(1 if refused else 0)
    rows = figures(found) | doubts(found, coverage)
    if report is not None:
        rows["report"] = str(report)
    if plots is not None:
        rows["plots"] = str(plots)
    print_rows(rows)
    raise typer.Exit(1 if refused else 0)
