"""The reference: every public thing has a numpydoc docstring whose example runs."""

import doctest
import inspect
import re
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

validation = pytest.importorskip("numpydoc.validate")

MODULES = [
    "gpcache",
    "gpcache.methods",
    "gpcache.metrics",
    "gpcache.similarity",
    "gpcache.encoders",
    "gpcache.features.store",
    "gpcache.features.stored_rows",
    "gpcache.features.extract",
    "gpcache.features.splits",
    "gpcache.features.neighbors",
]
# How estimators build, save and read their own report: no user calls these.
INTERNAL = {
    f"HeldOutReport.{name}" for name in ("empty", "of_shots", "of", "joined", "write", "read")
}
# Base classes that are not exported but whose methods every estimator has.
BASES = [
    "gpcache.methods.cache.estimator.CacheClassifier",
    "gpcache.methods.additive.AdditiveClassifier.fit",
    "gpcache.methods.trained_head.TrainedHeadClassifier.fit",
]

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def exported(module_name: str) -> Iterator[tuple[str, object]]:
    """The names that a module exports, or defines where it has no list of exports."""
    module = import_module(module_name)
    defined = [name for name, one in vars(module).items() if _is_defined_in(one, module_name)]
    for name in getattr(module, "__all__", defined):
        if not name.startswith("_"):
            yield name, getattr(module, name)


def _is_defined_in(thing: object, module_name: str) -> bool:
    is_code = inspect.isclass(thing) or inspect.isfunction(thing)
    return is_code and thing.__module__ == module_name


def public_places() -> list[str]:
    """Classes, methods, properties and functions as numpydoc names them, each once."""
    found = {}
    for module_name in MODULES:
        for _, thing in exported(module_name):
            if inspect.isclass(thing) or inspect.isfunction(thing):
                found |= dict.fromkeys(_places(thing))
    for place in BASES:
        module_name, _, name = place.partition("Classifier")[0].rpartition(".")
        owner = getattr(import_module(module_name), f"{name}Classifier")
        found |= dict.fromkeys(_places(owner) if place.endswith("Classifier") else [place])
    return list(found)


def _places(thing: type) -> Iterator[str]:
    place = f"{thing.__module__}.{thing.__qualname__}"
    yield place
    if not inspect.isclass(thing) or issubclass(thing, Exception):
        return
    for name, member in vars(thing).items():
        routed = name.startswith("set_") and name.endswith("_request")
        is_code = callable(member) or isinstance(member, property | classmethod | staticmethod)
        hidden = name.startswith("_") or routed or f"{thing.__name__}.{name}" in INTERNAL
        if is_code and not hidden:
            yield f"{place}.{name}"


PLACES = public_places()
# Summary, parameters, returns and examples are there and complete; the other codes are about taste.
CODES = {"GL08", "SS01", "SS03", "SS04", "PR01", "PR02", "PR03", "PR04", "PR07", "PR10"}
CODES |= {"RT01", "RT03"}


def resolved(place):
    parts = place.split(".")
    for count in range(len(parts) - 1, 0, -1):
        try:
            found = import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = inspect.getattr_static(found, part)
        return found.__func__ if isinstance(found, classmethod | staticmethod) else found
    raise ModuleNotFoundError(place)


def needs_example(thing):
    """Whether it can be called: neither a property nor an error."""
    is_error = inspect.isclass(thing) and issubclass(thing, Exception)
    return (inspect.isclass(thing) or inspect.isfunction(thing)) and not is_error


@pytest.mark.parametrize("place", PLACES)
def test_the_docstring_is_complete(place):
    report = validation.validate(place)
    codes = CODES | ({"EX01"} if needs_example(resolved(place)) else set())
    assert [error for error in report["errors"] if error[0] in codes] == []


@pytest.mark.parametrize("place", [one for one in PLACES if inspect.isfunction(resolved(one))])
def test_what_it_raises_is_listed(place):
    thing = resolved(place)
    if re.search(r"^\s+raise \w+Error\(", inspect.getsource(thing), re.MULTILINE):
        assert "Raises\n------" in inspect.getdoc(thing)


def with_speed(place):
    """The place, marked as slow where its example loads an encoder."""
    loads = re.search(r"load_encoder|ImageClassifier\(", inspect.getdoc(resolved(place)))
    return pytest.param(place, marks=[pytest.mark.slow] if loads else [])


EXAMPLES = [with_speed(one) for one in PLACES if needs_example(resolved(one))]


@pytest.mark.parametrize("place", EXAMPLES)
def test_the_example_runs(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    runner = doctest.DocTestRunner(optionflags=flags)
    parser, thing = doctest.DocTestParser(), resolved(place)
    example = parser.get_doctest(inspect.getdoc(thing), {}, place, place, 0)
    said = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runner.run(example, out=said.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(said)


def test_every_public_name_is_in_the_reference():
    written = " ".join(page.read_text() for page in REFERENCE.glob("*.md"))
    named = set(re.findall(r"auto\w+:: (\S+)", written))
    short = {name.rsplit(".", 1)[1] for name in named}
    for module_name in ("gpcache", "gpcache.methods", "gpcache.metrics", "gpcache.similarity"):
        for name, thing in exported(module_name):
            if inspect.isclass(thing) or inspect.isfunction(thing):
                assert name in short, f"{module_name}.{name} is on no page of docs/reference"
