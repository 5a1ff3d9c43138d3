"""`gpcache demo`: show what gpcache does, on drawn pictures or on the user's photos."""

import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from typer import Argument, Option, echo, secho

import gpcache
from gpcache.cli import options, output

if TYPE_CHECKING:
    from gpcache.images.records import Refused
    from gpcache.model.demo import PlantedLabel
    from gpcache.model.evaluation import Evaluation

PHOTOS = "Your own folder with one folder for each class."
PhotosArgument = Annotated[
    Path | None, Argument(metavar="PHOTOS", help=PHOTOS, show_default="drawn pictures")
]
OutputOption = Annotated[
    Path, Option("--output", "-o", metavar="FOLDER", help="Where to write model and report.")
]
SHOTS = "Train on K pictures of each class, test on the others."
OTHERS_EACH = 2
POOL = 50
SUGGESTIONS = 5


class Step(NamedTuple):
    """A step: its title, the command that does the same, words for people, and facts for JSON."""

    title: str
    command: str
    words: output.Words
    facts: dict[str, Any]
    notices: Sequence[str] = ()
    refused: "Sequence[Refused]" = ()


def demo(
    photos: PhotosArgument = None,
    folder: OutputOption = Path("gpcache-demo"),
    shots: Annotated[int, Option(min=1, metavar="K", help=SHOTS)] = 5,
    seed: Annotated[
        int, Option(min=0, metavar="N", help="Seed for choosing the training pictures.")
    ] = 0,
    json: options.JsonOption = False,
    _verbose: options.VerboseOption = False,
) -> None:
    """Show what gpcache does, on drawn pictures or on your photos.

    It trains on a few pictures of each class, estimates the accuracy and tests it, finds a wrong
    label, says "I don't know", suggests what to label next, and writes a report. It takes less than
    a minute and downloads nothing.

    **Examples**

    - `gpcache demo`
    - `gpcache demo my/photos --shots 5`
    """
    facts: dict[str, Any] = {}
    for step in _steps(folder, photos, shots, seed):
        facts |= step.facts
        if not json:
            echo()
            secho(step.title, bold=True, nl=not step.command)
            if step.command:
                secho(f"  ({step.command})", dim=True)
            output.show(json, None, step.words)
            output.print_notes(step.refused, step.notices)
    output.show(json, facts, ())


def _steps(folder: Path, photos: Path | None, shots: int, seed: int) -> Iterator[Step]:
    from gpcache.cli.answers import lines
    from gpcache.images.drawn import DRAWN_OTHERS, draw_pictures
    from gpcache.images.records import Source, plural
    from gpcache.images.sources import open_source
    from gpcache.model.demo import plant_label, split_source
    from gpcache.model.report import write_report
    from gpcache.model.report.build import build_report
    from gpcache.model.suggest import suggest_images
    from gpcache.support.files import make_folder

    place, drawn = make_folder(folder), photos is None
    images = (draw_pictures(place / "pictures") if photos is None else photos).resolve()
    train, test = split_source(open_source(images), shots, seed)
    count = plural((train.total or 0) + (test.total or 0), "picture")
    kind = " Drawn by a program: these are not photographs." if drawn else ""
    facts: dict[str, Any] = {"pictures": str(images), "drawn": drawn}
    yield Step("Pictures", "", f"{count} in {images}.{kind}", facts)

    start = time.perf_counter()
    classifier = gpcache.ImageClassifier("lite").fit(train)
    seconds, classes = time.perf_counter() - start, classifier.classes
    count = plural(len(classifier.examples), "picture")
    trained = f"Trained on {count} in {seconds:.0f} s, without a validation set."
    words = [trained, f"{len(classes)} classes: {', '.join(classes)}."]
    notes = classifier.training.notices, classifier.training.refused
    yield Step("1. Train", "gpcache fit", words, {}, *notes)

    held_out, test_set = classifier.held_out(), classifier.evaluate(test, refused=[])
    facts = {"held_out": held_out and held_out.summary(), "test": test_set.summary()}
    yield Step("2. How good is it?", "gpcache evaluate", _figures(held_out, test_set), facts)

    if planted := plant_label(classifier, seed):
        yield _wrong_label(planted)

    others = draw_pictures(place / "others", DRAWN_OTHERS, each=OTHERS_EACH)
    answers = classifier.predict(others)
    words = ["These pictures belong to none of the classes:", *(lines(one, 1) for one in answers)]
    facts = {"others": [answer.as_dict() for answer in answers]}
    notices = sorted({answer.note for answer in answers if answer.note})
    yield Step("4. Show it something else", "gpcache predict", words, facts, notices)

    pool = list(test.records)[:POOL]
    source = Source("pool", pool, len(pool))
    names, _, refused = suggest_images(source, SUGGESTIONS, classifier.encoder_, classifier.model)
    n_pool = len(pool) - len(refused)
    task = f"Suppose that {n_pool} of the test pictures had no label. Label these first:"
    words = [task, ", ".join(names)]
    yield Step("5. What to label next", "gpcache suggest", words, {"label_next": names})

    model, report = place / "demo.gpc", place / "report.html"
    classifier.save(model)
    write_report(build_report(classifier, test_set, images), report)
    facts = {"model": str(model), "report": str(report)}
    yield Step("6. See for yourself", "", _next_commands(model, report), facts)


def _figures(held_out: "Evaluation | None", test: "Evaluation") -> dict[str, output.Value]:
    mistakes = [f"{c.truth} taken for {c.answer}: {c.images}" for c in test.confusions()]
    data = "training pictures, each predicted by a model trained on the others"
    unknown = "not known: no class has two training pictures"
    return {
        "Held-out accuracy": unknown if held_out is None else _accuracy(held_out, data),
        "Test accuracy": _accuracy(test, "pictures that it was not trained on"),
        "Mistakes": mistakes or "none",
        'Said "I don\'t know"': f"{test.rejected.sum()} of {len(test):,} times",
    }


def _accuracy(evaluation: "Evaluation", data: str) -> str:
    low, high = evaluation.interval
    interval = f"95 % interval {100 * low:.0f} – {100 * high:.0f}"
    return f"{output.percent(evaluation.accuracy)} ({interval}): {len(evaluation):,} {data}"


def _wrong_label(planted: "PlantedLabel") -> Step:
    name, truth, label, finding, others = planted
    verdict = "It was not found. More pictures of each class make it easier to find."
    if finding is not None:
        worth = "" if finding.kind == "label" else ", as worth a look"
        verdict = f"Found{worth}: {finding.sentence}"
    words = [
        f"For this step we label one training picture of {truth} as {label}: {name}.",
        verdict,
        f"Other labels that are wrong or worth a look: {others}.",
    ]
    suggestion = None if finding is None else finding.suggestion
    facts = {"image": name, "label": label, "truth": truth, "suggestion": suggestion}
    planted_facts = {"planted": facts | {"other_suspects": others}}
    return Step("3. Find a wrong label", "gpcache check", words, planted_facts)


def _next_commands(model: Path, report: Path) -> dict[str, output.Value]:
    program = _program()
    return {
        "The report": f"open {report} in a browser",
        "The page": f"{program} serve {model}",
        "New photos": f"{program} predict {model} YOUR_PHOTOS --why",
        "Your classes": f"{program} demo FOLDER_OF_CLASS_FOLDERS",
    }


def _program() -> str:
    """The command of this installation: `gpcache` if the shell finds it."""
    if shutil.which("gpcache"):
        return "gpcache"
    python, here = Path(sys.executable), Path.cwd()
    return f"{python.relative_to(here) if python.is_relative_to(here) else python} -m gpcache"
