"""`gpcache inspect`: what a model folder holds."""

from collections import Counter
from dataclasses import asdict

from gpcache.cli.options import JsonOption, ModelArgument, VerboseOption, print_json, print_rows

# Those that the model has are shown.
_NUMBERS = [
    "alpha",
    "beta",
    "tau",
    "shrinkage",
    "discriminant",
    "noise",
    "eta",
    "gain",
    "temperature",
]


def inspect(
    model: ModelArgument, json: JsonOption = False, _verbose: VerboseOption = False
) -> None:
    """Say what a model was made of, and how good it is.

    **Example**

    - `gpcache inspect pets.gpc`
    """
    from gpcache.cli.tables import held_out_figures
    from gpcache.model.classifier import ImageClassifier
    from gpcache.similarity.projection import origin

    classifier = ImageClassifier.load(model, device="cpu")
    counts = Counter(example.label for example in classifier.examples)
    numbers = {
        name: getattr(classifier.model, f"{name}_")
        for name in _NUMBERS
        if hasattr(classifier.model, f"{name}_")
    }
    projection = classifier.projection
    facts = None if projection is None else projection.facts
    if json:
        held_out = classifier.held_out()
        print_json(
            {
                "encoder": classifier.encoder_name,
                "method": classifier.method,
                "images": len(classifier.examples),
                "classes": {name: counts[name] for name in classifier.classes},
                "numbers": numbers,
                "templates": classifier.templates,
                "views": classifier.views.count if classifier.views else 0,
                "projection": projection and (asdict(facts) if facts else {}),
                "source": classifier.training.source,
                "held_out": None if held_out is None else held_out.summary(),
            }
        )
        return
    rows = {
        "model": str(model),
        "encoder": classifier.encoder_name,
        "method": str(classifier.method),
        "images": f"{len(classifier.examples)} from {classifier.training.source}",
        "classes": ", ".join(f"{name} ({counts[name]})" for name in classifier.classes),
        "numbers": ", ".join(f"{name} {value:.4g}" for name, value in numbers.items()),
    }
    if projection is not None:
        rows["projection"] = origin(facts)
    print_rows(rows | held_out_figures(classifier))
