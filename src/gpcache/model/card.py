"""The model card: a README.md that describes a model, with the front matter of the hub."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gpcache.methods.cache.search import SOFTMAX_NUMBERS
from gpcache.model.evaluation import Evaluation
from gpcache.similarity.projection import ProjectionFacts, origin
from gpcache.support.names import printable

_MARKUP = "\\`*_[]|#~$"


def model_card(config: dict[str, Any], held_out: Evaluation | None) -> str:
    """Markdown for a model folder; every figure comes with its data and protocol."""
    model = config["model"]
    choice, facts = model.get("choice", {}), model.get("projection")
    # Models of version 0.1 only have the Gaussian likelihood.
    names = SOFTMAX_NUMBERS if choice.get("tau") else ("alpha", "beta", "noise", "gain")
    counts = Counter(example["label"] for example in config["examples"])
    return _TEMPLATES.get_template("card.md").render(
        config,
        version=config["gpcache"],
        held_out=held_out,
        counts=counts,
        examples=model.get("explicit", {}).get("n_rows", len(config["examples"])),
        shots=list(counts.values()),
        chosen={name: choice[name] for name in names} if choice else {},
        projection=origin(facts and ProjectionFacts(**facts)) if "projection" in model else None,
    )


def percent(share: float) -> str:
    """0.961 as 96.1%."""
    return f"{share:.1%}"


def yaml_text(text: str) -> Markup:
    """A YAML string: JSON, which YAML contains."""
    return Markup(json.dumps(printable(text), ensure_ascii=False))


def _plain(value: Any) -> Any:
    """Text without Markdown syntax."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "".join(f"\\{one}" if one in _MARKUP else one for one in printable(value))


def environment(
    clean: Callable[[Any], Any], filters: Sequence[Callable[..., Any]] = ()
) -> Environment:
    """An environment that passes every value through `clean` and then escapes its HTML.

    They can use the `filters` by name.
    """
    jinja = Environment(
        loader=PackageLoader("gpcache.model", "report/templates"),
        autoescape=True,
        finalize=clean,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    jinja.filters |= {one.__name__: one for one in filters}
    return jinja


_TEMPLATES = environment(_plain, (percent, yaml_text))
