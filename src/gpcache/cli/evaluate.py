"""`gpcache evaluate`: measure a model on labelled images that it has not seen."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Exit, Option

import gpcache
from gpcache.cli import options, output

COVERAGE = "Also show the accuracy of this share of the answers, the most confident ones."
UNKNOWN = "Images that belong to none of the classes: also show how many of them are refused."

ReportOption = Annotated[Path | None, Option(metavar="FILE", help="Write a report, one HTML file.")]
PlotsOption = Annotated[Path | None, Option(metavar="FOLDER", help="Write its plots (PNG, SVG).")]


def evaluate(
    model: options.ModelArgument,
    images: options.ImagesArgument,
    report: ReportOption = None,
    plots: PlotsOption = None,
    reject: options.RejectOption = 0.05,
    coverage: Annotated[
        float | None, Option(min=0.001, max=1, metavar="SHARE", help=COVERAGE)
    ] = None,
    unknown: Annotated[Path | None, Option(metavar="IMAGES", help=UNKNOWN)] = None,
    follow: options.FollowOption = False,
    device: options.DeviceOption = "auto",
    json: options.JsonOption = False,
    _verbose: options.VerboseOption = False,
) -> None:
    """Measure the accuracy of a model on unseen images.

    Images that cannot be read are listed on stderr and not counted; then the exit code is 1.

    **Examples**

    - `gpcache evaluate pets.gpc test_photos/ --report report.html`
    - `gpcache evaluate pets.gpc test.csv --coverage 0.9 --unknown not_pets/ --json`
    """
    from gpcache.cli.figures import doubts, evaluation_figures
    from gpcache.images.records import Refused
    from gpcache.images.sources import open_source
    from gpcache.model.advice import model_advice

    if report is not None:
        options.check_file(report)
    classifier = gpcache.ImageClassifier.load(model, device=device)
    refused: list[Refused] = []
    source = open_source(images.resolve(), follow=follow)
    unknown_source = None
    if unknown is not None:
        unknown_source = open_source(unknown.resolve(), follow=follow, labelled=False)
    evaluation = classifier.evaluate(source, reject=reject, unknown=unknown_source, refused=refused)
    if report is not None or plots is not None:
        from gpcache.model.report import save_plots, write_report
        from gpcache.model.report.build import build_report

        content = build_report(classifier, evaluation, images.resolve(), refused)
        if report is not None:
            write_report(content, report)
        if plots is not None:
            save_plots(content, plots)
    output.print_notes(refused)
    advice = model_advice(classifier.content, evaluation)
    summary = evaluation.summary() | {"refused": output.refused_as_json(refused)}
    summary["advice"] = [asdict(one) for one in advice]
    if coverage is not None:
        summary["accuracy_at_coverage"][f"{coverage:g}"] = evaluation.accuracy_at(coverage)
    files = {"report": report, "plots": plots}
    written = {name: str(path) for name, path in files.items() if path is not None}
    figures = evaluation_figures(evaluation) | doubts(evaluation, coverage) | written
    output.show(json, summary, figures | {"advice": [one.sentence for one in advice]})
    raise Exit(1 if refused else 0)
