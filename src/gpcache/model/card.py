"""The model card: a README.md that says what a model is, with the front matter of the hub."""

from __future__ import annotations

import json
from collections import Counter
from html import escape
from typing import Any

from gpcache.methods.cache.search import SOFTMAX_NUMBERS
from gpcache.model.evaluation import Evaluation
from gpcache.similarity.projection import ProjectionFacts, origin

_MARKUP = "\\`*_[]|#~$"
_JOINERS = "\u200c\u200d"  # not printed themselves, but emoji and some scripts need them


def model_card(config: dict[str, Any], held_out: Evaluation | None) -> str:
    """Markdown for a model folder; every figure says which data and protocol it comes from."""
    model, encoder, training = config["model"], config["encoder"], config["training"]
    counts = Counter(example["label"] for example in config["examples"])
    shots = sorted(counts.values())
    lines = [
        "---",
        "library_name: gpcache",
        "pipeline_tag: image-classification",
        f"base_model: {json.dumps(_printed(encoder['name']), ensure_ascii=False)}",
        "base_model_relation: adapter",
        "license: unknown",
        "tags: [gpcache, few-shot, image-classification]",
        "---",
        "",
        "# Image classifier",
        "",
        f"{len(model['classes'])} classes, learned from {len(config['examples'])} images by "
        f"{model['method']} on the encoder {_plain(encoder['name'])} with gpcache "
        f"{config['gpcache']}.",
        "",
        "## How good it is",
        "",
    ]
    if held_out is None:
        lines += ["Not known: no image could be held out. Evaluate it on images of your own."]
    else:
        low, high = held_out.interval
        lines += [
            "| data | protocol | n | accuracy | 95 % interval | ECE | NLL |",
            "|---|---|---|---|---|---|---|",
            f"| {_plain(held_out.data)} | {held_out.protocol} | {len(held_out)} | "
            f"{held_out.accuracy:.1%} | {low:.1%} – {high:.1%} | {held_out.ece:.1%} | "
            f"{held_out.nll:.3f} |",
            "",
            "Each image was judged by a model and by numbers that had not seen it.",
        ]
    drawn = f", {training['shots']} a class drawn with seed {training['seed']}"
    lines += [
        "",
        "## What it was made of",
        "",
        f"- Images: {_plain(training['source'])}{drawn if training['shots'] else ''}; "
        + (f"{shots[0]} to {shots[-1]} a class" if shots else "none")
        + f"; {len(training['refused'])} refused.",
        f"- Encoder: {_plain(encoder['name'])}, fingerprint `{encoder['fingerprint'][:16]}…`, "
        f"{encoder['dim']} numbers a vector.",
        f"- Views of each image: {config['views'] or 1}.",
        *_projection_line(model),
        "- Classes: " + ", ".join(f"{_plain(name)} ({counts[name]})" for name in model["classes"]),
    ]
    if "choice" in model:
        # Models of version 0.1 know no likelihood but the Gaussian one.
        is_softmax = bool(model["choice"].get("tau"))
        names = SOFTMAX_NUMBERS if is_softmax else ("alpha", "beta", "noise", "gain")
        choice = ", ".join(f"{name} {model['choice'][name]:.4g}" for name in names)
        lines.append(f"- Chosen: {choice}; temperature {model['temperature']:.4g}.")
    lines += [
        "",
        "## Use",
        "",
        "```python",
        "from gpcache import ImageClassifier",
        'model = ImageClassifier.load("this folder")',
        'for answer in model.predict(["photo.jpg"]):',
        "    print(answer.label, answer.probability, answer.rejected)",
        "```",
        "",
    ]
    return "\n".join(lines)


def _projection_line(model: dict[str, Any]) -> list[str]:
    """Where the similarity projection came from, if the model has one."""
    if "projection" not in model:
        return []
    facts = model["projection"]
    return [f"- Similarity projection: {_plain(origin(facts and ProjectionFacts(**facts)))}."]


def _plain(text: str) -> str:
    """Text that cannot act as Markdown or HTML."""
    escaped = "".join(f"\\{one}" if one in _MARKUP else one for one in _printed(text))
    return escape(escaped, quote=False)


def _printed(text: str) -> str:
    """Text on one line, without characters that change how others are shown."""
    return "".join(one if one.isprintable() or one in _JOINERS else "�" for one in str(text))
