"""Prompts: class names, templates and files of sentences → one text vector per class."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from reprlib import repr as shown
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpcache.errors import DataError
from gpcache.support.files import read_json, sha256
from gpcache.support.names import tidy_name

if TYPE_CHECKING:
    from gpcache.encoders import Encoder

# "a(n) {}" is the name with the article that fits it, or without one.
DEFAULT_TEMPLATES: tuple[str, ...] = ("a photo of a(n) {}.",)
PLAIN_TEMPLATES: tuple[str, ...] = ("a photo of a {}.",)

# The templates of CoOp and later papers for each data set.
TEMPLATES: Mapping[str, tuple[str, ...]] = {
    "caltech101": PLAIN_TEMPLATES,
    "dtd": ("{} texture.",),
    "eurosat": ("a centered satellite photo of {}.",),
    "fgvc_aircraft": ("a photo of a {}, a type of aircraft.",),
    "food101": ("a photo of {}, a type of food.",),
    "imagenet": (
        "itap of a {}.",
        "a bad photo of the {}.",
        "a origami {}.",
        "a photo of the large {}.",
        "a {} in a video game.",
        "art of the {}.",
        "a photo of the small {}.",
    ),
    "oxford_flowers": ("a photo of a {}, a type of flower.",),
    "oxford_pets": ("a photo of a {}, a type of pet.",),
    "stanford_cars": PLAIN_TEMPLATES,
    "sun397": PLAIN_TEMPLATES,
    "ucf101": ("a photo of a person doing {}.",),
}

# Common nouns without an article; use --prompt for others.
_NOUNS = """
    asphalt bacon beef bread broccoli butter cardboard cash cement cheese clay clothing cloth coal
    coffee concrete copper corn cotton cutlery denim dirt dust fabric fire flour foam food fruit fur
    furniture garbage garlic glass gold grass gravel hair hay honey ice iron jewelry juice lace lava
    leather lightning litter luggage marble meat metal milk money moss mud oil paper pasta plastic
    porcelain pork pottery rain rice rope rubber rubbish rust salad salt sand silk silver smoke snow
    soap soil soup steel straw sugar sushi tea toast tofu trash velvet waste water wheat wine wire
    wood wool yarn yogurt
"""
UNCOUNTABLE = frozenset(_NOUNS.split())

MAX_PROMPT_FILE = 50_000_000
# An average of unit vectors that is shorter than this is rounding error and has no direction.
NO_DIRECTION = 1e-6


def clean_class_name(name: str) -> str:
    """The name for a sentence: composed (NFC), spaces for underscores, single spaces."""
    return tidy_name(name.replace("_", " "))


def filled_template(template: str, name: str) -> str:
    """A template with a class name for its {}, and with the article that fits for its "a(n)".

    Examples
    --------
    >>> from gpcache.encoders.prompts import filled_template
    >>> [filled_template("a photo of a(n) {}.", name) for name in ("crab", "owl", "cardboard")]
    ['a photo of a crab.', 'a photo of an owl.', 'a photo of cardboard.']
    """
    cleaned = clean_class_name(name)
    return template.replace("a(n) {}", _with_article(cleaned)).replace("{}", cleaned)


def _with_article(name: str) -> str:
    lower = name.lower()
    last = lower.split()[-1] if lower else ""
    plural = last.endswith("s") and not last.endswith(("ss", "us", "is", "as", "lens"))
    if plural or last in UNCOUNTABLE:
        return name
    vowel = lower.startswith((*"aeiou", "hour", "heir", "honest"))
    consonant = lower.startswith(("uni", "use", "usa", "uti", "eu", "ewe", "one", "once"))
    return f"an {name}" if vowel and not consonant else f"a {name}"


@dataclass(frozen=True)
class Prompts:
    """Class names and the sentences that describe each class.

    Parameters
    ----------
    class_names : tuple of str
        Class names; they stay the labels.
    sentences : tuple of tuple of str
        Sentences of each class. A sentence that is given twice counts twice.

    Attributes
    ----------
    digest : str
        SHA-256 of the classes and sentences.

    Raises
    ------
    DataError
        If a name or a sentence is empty, or a name is given twice.

    Examples
    --------
    >>> from gpcache import Prompts
    >>> Prompts.from_templates(["cat", "dog"], "a photo of a {}.").sentences
    (('a photo of a cat.',), ('a photo of a dog.',))
    """

    class_names: tuple[str, ...]
    sentences: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        _checked_class_names(self.class_names)
        if len(self.sentences) != len(self.class_names):
            raise DataError(
                f"Prompts need one list of sentences per class: got {len(self.class_names)} "
                f"classes and {len(self.sentences)} lists."
            )
        for name, sentences in zip(self.class_names, self.sentences, strict=True):
            if isinstance(sentences, str) or not sentences:
                raise DataError(f"The class {shown(name)} needs a list of at least one sentence.")
            for sentence in sentences:
                if not isinstance(sentence, str) or not sentence.strip():
                    raise DataError(
                        f"A sentence of the class {shown(name)} must be text that is not empty, "
                        f"got {shown(sentence)}."
                    )

    def joined(self, others: Prompts) -> Prompts:
        """Append the classes of other prompts.

        Parameters
        ----------
        others : Prompts
            Prompts of further classes.

        Returns
        -------
        Prompts
            All classes.

        Examples
        --------
        >>> from gpcache import Prompts
        >>> Prompts.from_templates(["cat"]).joined(Prompts.from_templates(["dog"])).class_names
        ('cat', 'dog')
        """
        return Prompts(self.class_names + others.class_names, self.sentences + others.sentences)

    def without(self, class_name: str) -> Prompts:
        """Leave out one class.

        Parameters
        ----------
        class_name : str
            The class to leave out.

        Returns
        -------
        Prompts
            All other classes.

        Examples
        --------
        >>> from gpcache import Prompts
        >>> Prompts.from_templates(["cat", "dog"]).without("cat").class_names
        ('dog',)
        """
        pairs = zip(self.class_names, self.sentences, strict=True)
        kept = {name: sentences for name, sentences in pairs if name != class_name}
        return Prompts(tuple(kept), tuple(kept.values()))

    @classmethod
    def from_templates(
        cls, class_names: Sequence[str], templates: str | Sequence[str] = DEFAULT_TEMPLATES
    ) -> Prompts:
        """Fill every template with every class name.

        Parameters
        ----------
        class_names : sequence of str
            Class names.
        templates : str or sequence of str, default=("a photo of a {}.",)
            Sentences with {} in place of the class name. Underscores in a name become spaces.

        Returns
        -------
        Prompts
            One sentence for each class and template.

        Raises
        ------
        DataError
            If there is no template, or one without exactly one {}.

        Examples
        --------
        >>> from gpcache import Prompts
        >>> Prompts.from_templates(["guinea_pig"]).sentences
        (('a photo of a guinea pig.',),)
        """
        names = _checked_class_names(class_names)
        checked = _checked_templates(templates)
        if not checked:
            raise DataError("templates must hold at least one template, such as 'a photo of a {}.'")
        return cls(names, tuple(_filled(checked, name) for name in names))

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        class_names: Sequence[str] | None = None,
        templates: str | Sequence[str] = (),
    ) -> Prompts:
        """Read sentences from a JSON file {class: [sentence, …]}.

        Every sentence has the same weight, wherever it comes from.

        Parameters
        ----------
        path : str or path
            The JSON file.
        class_names : sequence of str, optional
            Classes to take, found by name; all classes of the file by default.
        templates : str or sequence of str, default=()
            Templates whose sentences are added.

        Returns
        -------
        Prompts
            Classes and sentences.

        Raises
        ------
        DataError
            If the file lacks a class or cannot be read.

        Examples
        --------
        >>> import tempfile
        >>> from pathlib import Path
        >>> from gpcache import Prompts
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "prompts.json"
        ...     _ = file.write_text('{"cat": ["a cat on a sofa"]}')
        ...     Prompts.from_file(file).sentences
        (('a cat on a sofa',),)
        """
        checked = _checked_templates(templates)
        file = Path(path)
        content = _read_sentences(file)
        names = tuple(content) if class_names is None else _checked_class_names(class_names)
        spellings: dict[str, list[str]] = {}
        for key in content:
            spellings.setdefault(clean_class_name(key), []).append(key)
        sentences = []
        for name in names:
            keys = [name] if name in content else spellings.get(clean_class_name(name), [])
            if len(keys) != 1:
                problem = f"has both {shown(keys[0])} and {shown(keys[1])} for" if keys else "lacks"
                raise DataError(
                    f"The prompt file {file} {problem} the class {shown(name)}: "
                    "it needs one list of sentences for each class."
                )
            sentences.append(_filled(checked, name) + content[keys[0]])
        return cls(names, tuple(sentences))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the classes and sentences in their order."""
        content = json.dumps([self.class_names, self.sentences], separators=(",", ":"))
        return sha256(content.encode())


def text_weights(encoder: Encoder, prompts: Prompts) -> NDArray[np.float32]:
    """Compute one unit vector per class: the average of the vectors of its sentences.

    Parameters
    ----------
    encoder : Encoder
        The encoder.
    prompts : Prompts
        Classes and their sentences.

    Returns
    -------
    array of shape (c, dim)
        Unit vectors, for `TextPrior`.

    Raises
    ------
    DataError
        If the vectors of a class average to zero.

    Examples
    --------
    >>> from gpcache import Prompts, load_encoder, text_weights
    >>> text_weights(load_encoder("lite"), Prompts.from_templates(["cat", "dog"])).shape
    (2, 1664)
    """
    parts = sentence_vectors(encoder, prompts).values()
    average = np.stack([part.mean(0, dtype=np.float64) for part in parts])
    lengths = np.linalg.norm(average, axis=1, keepdims=True)
    if (lengths < NO_DIRECTION).any():
        name = prompts.class_names[int(lengths.argmin())]
        raise DataError(
            f"The vectors of the sentences of the class {shown(name)} average to zero: change its "
            "prompts."
        )
    weights: NDArray[np.float32] = (average / lengths).astype(np.float32)
    return weights


def sentence_vectors(encoder: Encoder, prompts: Prompts) -> dict[str, NDArray[np.float32]]:
    """The unit vectors (p, dim) of every class's sentences, by the class's name.

    A sentence that several classes share is encoded once.
    """
    sentences = dict.fromkeys(sentence for group in prompts.sentences for sentence in group)
    vectors = encoder.encode_texts(list(sentences))
    row_of = {sentence: row for row, sentence in enumerate(sentences)}
    return {
        name: vectors[[row_of[sentence] for sentence in group]]
        for name, group in zip(prompts.class_names, prompts.sentences, strict=True)
    }


def _checked_class_names(names: Sequence[str]) -> tuple[str, ...]:
    """The names as a tuple; all are different and none is empty."""
    if isinstance(names, str):
        raise DataError("class_names must be a list of names; put a single one in a list.")
    if not len(names):
        raise DataError("Prompts need at least one class name.")
    seen: set[str] = set()
    for name in names:
        if not isinstance(name, str) or not clean_class_name(name):
            raise DataError(f"A class name must be text that is not empty, got {shown(name)}.")
        tidy = tidy_name(name)  # two forms of é look the same
        if tidy in seen:
            raise DataError(f"The class name {shown(name)} is given more than once.")
        seen.add(tidy)
    return tuple(names)


def _checked_templates(templates: str | Sequence[str]) -> tuple[str, ...]:
    """The templates, each with one {} and no other brace; a single text is one template."""
    checked = (templates,) if isinstance(templates, str) else tuple(templates)
    for template in checked:
        before, slot, after = str(template).partition("{}")
        if not isinstance(template, str) or not slot or set("{}") & set(before + after):
            raise DataError(
                "A template must hold {} once, where the class name goes, and no other braces, as "
                f"in 'a photo of a {{}}.'; got {shown(template)}."
            )
    return checked


def _filled(templates: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(filled_template(template, name) for template in templates)


def _read_sentences(file: Path) -> dict[str, tuple[str, ...]]:
    """The classes of a prompt file and their lists; `Prompts` checks the content of the lists."""
    content = read_json(file, "prompt file", limit=MAX_PROMPT_FILE)
    if not isinstance(content, dict) or not content:
        raise DataError(f"The prompt file {file} must hold one object {{class: [sentence, …]}}.")
    for name, sentences in content.items():
        if not isinstance(sentences, list):
            raise DataError(
                f"The prompt file {file} must hold a list of sentences for the class "
                f"{shown(name)}, got {shown(sentences)}."
            )
    return {name: tuple(sentences) for name, sentences in content.items()}
