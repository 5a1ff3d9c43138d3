"""`gpcache inspect`: show what a model folder holds."""

from collections import Counter
from dataclasses import asdict

import gpcache
from gpcache.cli import options, output

# The hyper-parameters that are shown, if the model has them.
HYPER_PARAMETERS = ("alpha", "beta", "tau", "shrinkage", "discriminant", "noise", "eta", "gain")


def inspect(
    model: options.ModelArgument,
    json: options.JsonOption = False,
    _verbose: options.VerboseOption = False,
) -> None:
    """Show the training data, settings and accuracy of a model.

    **Example**

    - `gpcache inspect pets.gpc`
    """
    from gpcache.cli.figures import model_as_json, model_rows

    classifier = gpcache.ImageClassifier.load(model, device="cpu")
    fitted = classifier.model
    projection = getattr(fitted, "projection", None)
    counts = Counter(example.label for example in classifier.examples)
    cache = getattr(fitted, "fitted_", None)
    if cache is not None and cache.streamed is not None:
        class_counts = cache.streamed.class_counts.int().tolist()
        counts = Counter(dict(zip(classifier.classes, class_counts, strict=True)))
    names = [name for name in (*HYPER_PARAMETERS, "temperature") if hasattr(fitted, f"{name}_")]
    values = {name: getattr(fitted, f"{name}_") for name in names}
    content = {
        "encoder": classifier.encoder_name,
        "method": classifier.method_name,
        "images": classifier.n_images,
        "classes": {name: counts[name] for name in classifier.classes},
        "posterior": None if cache is None else cache.approximation,
        "hyper_parameters": values,
        "templates": classifier.content.templates,
        "views": classifier.content.views,
        "projection": projection and (asdict(projection.facts) if projection.facts else {}),
        "source": classifier.training.source,
        "held_out": model_as_json(classifier, model)["held_out"],
    }
    rows = model_rows(
        classifier,
        model,
        images=f"{classifier.n_images} from {classifier.training.source}",
        **({} if cache is None else {"posterior": cache.approximation}),
        classes=", ".join(f"{name} ({counts[name]})" for name in classifier.classes),
        settings=", ".join(f"{name} {value:.4g}" for name, value in values.items()),
    )
    output.show(json, content, rows)
