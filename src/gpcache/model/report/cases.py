"""Images beside what the model said of them, and the training images that made it say so."""

from __future__ import annotations

from collections.abc import Sequence

from gpcache.model.report.content import Case, Evidence
from gpcache.model.report.markup import bar, name, picture, signed


def gallery(cases: Sequence[Case]) -> str:
    """A list of cases."""
    return f'<ul class="cases">{"".join(_case(case) for case in cases)}</ul>'


def _case(case: Case) -> str:
    kind = "right" if case.truth == case.answer else "wrong"
    return (
        f'<li class="case card">{picture(case.image, case.caption)}<div class="verdict">'
        f'<p class="caption">{name(case.caption)}</p>'
        f"<dl><div><dt>label</dt><dd>{name(case.truth)}</dd></div>"
        f'<div><dt>answer</dt><dd class="{kind}">{name(case.answer)}</dd></div>'
        f"<div><dt>confidence</dt><dd>{bar(case.probability)}</dd></div></dl></div>"
        f"{_evidence(case) if case.evidence else ''}</li>"
    )


def _evidence(case: Case) -> str:
    about = case.answer if case.evidence_for is None else case.evidence_for
    shown = sum(one.weight for one in case.evidence)
    text = "" if case.text is None else f", class name {signed(case.text)}"
    average = "" if case.average is None else f", class average {signed(case.average)}"
    return (
        '<div class="why"><p>Training photos for (+) and against (\N{MINUS SIGN}) '
        f"{name(about)}</p>"
        f"<ol>{''.join(_voice(one) for one in case.evidence)}</ol>"
        f"<p>These {signed(shown)}, other photos {signed(case.others)}{average}{text}: "
        f"together <b>{signed(case.logit)}</b></p></div>"
    )


def _voice(evidence: Evidence) -> str:
    kind = "for" if evidence.weight >= 0 else "against"
    image = ""
    if evidence.image is not None:
        image = picture(evidence.image, f"Training photo of {evidence.label}")
    return f'<li class="{kind}">{image}<b>{signed(evidence.weight)}</b>{name(evidence.label)}</li>'
