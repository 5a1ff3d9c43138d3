"""`gpcache demo`: show what gpcache does, on drawn pictures or on the user's photos."""

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option, echo, secho

from gpcache.cli import options, output

if TYPE_CHECKING:
    from gpcache.model.demo import Step
    from gpcache.model.evaluation import Evaluation

PHOTOS = "Your own folder with one folder for each class."
PhotosArgument = Annotated[Path | None, Argument(help=PHOTOS, show_default="drawn pictures")]
OutputOption = Annotated[Path, Option("--output", "-o", help="Where to write model and report.")]
SHOTS = "Train on K pictures of each class, test on the others."
NAME_WIDTH = 19


def demo(
    photos: PhotosArgument = None,
    folder: OutputOption = Path("gpcache-demo"),
    shots: Annotated[int, Option(min=1, metavar="K", help=SHOTS)] = 5,
    seed: Annotated[int, Option(min=0, help="Seed for choosing the training pictures.")] = 0,
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
    from gpcache.model.demo import demonstrate

    content: dict[str, Any] = {}
    for step in demonstrate(folder, photos, shots=shots, seed=seed):
        if json:
            content |= _as_json(step)
        else:
            _print_step(step)
    output.show(json, content, ())


def _print_step(step: "Step") -> None:
    """Print a step for people."""
    from gpcache.cli.answers import lines
    from gpcache.images.records import plural
    from gpcache.model import demo
    from gpcache.model.evaluation import Evaluation

    match step:
        case demo.Pictures():
            images = (step.train.total or 0) + (step.test.total or 0)
            kind = " Drawn by a program: these are not photographs." if step.drawn else ""
            _heading("Pictures", "")
            echo(f"{plural(images, 'picture')} in {output.printable(str(step.folder))}.{kind}")
        case demo.TrainedModel():
            classifier = step.classifier
            output.print_notes(classifier.training.refused, classifier.training.notices)
            _heading("1. Train", "gpcache fit")
            count, classes = plural(len(classifier.examples), "picture"), classifier.classes
            echo(f"Trained on {count} in {step.seconds:.0f} s, without a validation set.")
            echo(output.printable(f"{len(classes)} classes: {', '.join(classes)}."))
            _heading("2. How good is it?", "gpcache evaluate")
            _print_row("Held-out accuracy", _held_out(classifier.held_out()))
        case Evaluation():
            _print_row("Test accuracy", _accuracy(step, "pictures that it was not trained on"))
            mistakes = [f"{c.truth} taken for {c.answer}: {c.images}" for c in step.confusions()]
            _print_row("Mistakes", mistakes or "none")
            _print_row('Said "I don\'t know"', f"{step.rejected.sum()} of {len(step):,} times")
        case demo.PlantedLabel():
            _heading("3. Find a wrong label", "gpcache check")
            label = f"{step.truth} as {step.label}: {step.name}"
            echo(output.printable(f"For this step we label one training picture of {label}."))
            verdict = "It was not found. More pictures of each class make it easier to find."
            if step.finding is not None:
                worth = "" if step.finding.kind == "label" else ", as worth a look"
                verdict = f"Found{worth}: {step.finding.sentence}"
            echo(output.printable(verdict))
            echo(f"Other labels that are wrong or worth a look: {step.others}.")
        case demo.OtherPictures():
            _heading("4. Show it something else", "gpcache predict")
            echo("These pictures belong to none of the classes:")
            for answer in step.answers:
                echo(lines(answer, 1))
            output.print_notices(sorted({answer.note for answer in step.answers if answer.note}))
        case demo.NextPictures():
            _heading("5. What to label next", "gpcache suggest")
            echo(f"Suppose that {step.pool} of the test pictures had no label. Label these first:")
            echo(output.printable(", ".join(step.names)))
        case demo.Written():
            _heading("6. See for yourself", "")
            program = _program()
            rows = {"The report": f"open {step.report} in a browser"}
            rows["The page"] = f"{program} serve {step.model}"
            rows["New photos"] = f"{program} predict {step.model} YOUR_PHOTOS --why"
            rows["Your classes"] = f"{program} demo FOLDER_OF_CLASS_FOLDERS"
            output.print_rows(rows)


def _as_json(step: "Step") -> dict[str, Any]:
    """A step as `--json` prints it."""
    from gpcache.model import demo

    match step:
        case demo.Pictures():
            return {"pictures": str(step.folder), "drawn": step.drawn}
        case demo.TrainedModel():
            held_out = step.classifier.held_out()
            return {"held_out": None if held_out is None else held_out.summary()}
        case demo.PlantedLabel():
            suggestion = None if step.finding is None else step.finding.suggestion
            labels = {"label": step.label, "truth": step.truth, "suggestion": suggestion}
            return {"planted": {"image": step.name, **labels, "other_suspects": step.others}}
        case demo.OtherPictures():
            return {"others": [answer.as_dict() for answer in step.answers]}
        case demo.NextPictures():
            return {"label_next": step.names}
        case demo.Written():
            return {"model": str(step.model), "report": str(step.report)}
    return {"test": step.summary()}


def _heading(title: str, command: str) -> None:
    echo()
    secho(title, bold=True, nl=not command)
    if command:
        secho(f"  ({command})", dim=True)


def _print_row(name: str, value: str | list[str]) -> None:
    output.print_rows({name.ljust(NAME_WIDTH): value})


def _held_out(evaluation: "Evaluation | None") -> str:
    if evaluation is None:
        return "not known: no class has two training pictures"
    data = "training pictures, each predicted by a model trained on the others"
    return _accuracy(evaluation, data)


def _accuracy(evaluation: "Evaluation", data: str) -> str:
    low, high = evaluation.interval
    interval = f"95 % interval {100 * low:.0f} – {100 * high:.0f}"
    return f"{output.percent(evaluation.accuracy)} ({interval}): {len(evaluation):,} {data}"


def _program() -> str:
    """The command of this installation: `gpcache` if the shell finds it."""
    if shutil.which("gpcache"):
        return "gpcache"
    python, here = Path(sys.executable), Path.cwd()
    return f"{python.relative_to(here) if python.is_relative_to(here) else python} -m gpcache"
