"""Reads a spec: which methods run on which data. A mistake is one sentence with file and key.

Only `read_spec` needs pydantic: rows are also computed on machines that do not have it.
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from gpcache.benchmark.datasets.catalogue import catalogue
from gpcache.benchmark.measures import MEASURES
from gpcache.benchmark.options import did_you_mean, option_problem
from gpcache.benchmark.peers import known_methods
from gpcache.benchmark.protocols import FULL_VALIDATION, PROTOCOLS
from gpcache.errors import DataError
from gpcache.support.checks import shown

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic import ValidationError as PydanticError

MAX_SPEC_FILE = 1_000_000
_TABLE = {"extra": "forbid"}  # pydantic's option for: no other keys


@dataclass(frozen=True)
class _MustBe:
    """Makes pydantic refuse the value of a field that is not `good`, before it checks its type.

    If `listed`, a single value counts as a list of one.
    """

    words: str
    good: Callable[[Any], bool]
    listed: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core.core_schema import no_info_before_validator_function

        return no_info_before_validator_function(self._check, handler(source))

    def _check(self, value: Any) -> Any:
        found = [value] if self.listed and not isinstance(value, list | tuple) else value
        if not self.good(found):
            raise ValueError(f"must be {self.words}, got {shown(value)}")
        return found


def _different(good: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda values: all(map(good, values)) and len(set(values)) == len(values)


def _whole(least: int) -> _MustBe:
    good = _different(lambda value: type(value) is int and value >= least)
    return _MustBe(f"different whole numbers of {least} or more", good, listed=True)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


Text = Annotated[str, _MustBe("text", _is_text)]
Names = Annotated[
    tuple[str, ...], _MustBe("a list of different texts", _different(_is_text), listed=True)
]
Shots = Annotated[tuple[int, ...], _whole(1)]
Seeds = Annotated[tuple[int, ...], _whole(0)]
Values = Annotated[
    list[Any], _MustBe("a list of values", lambda one: isinstance(one, list) and bool(one))
]
Options = dict[str, Any]
Preset = Literal["default", "paper"]


@dataclass(frozen=True)
class Override:
    """Options that apply only on these data sets and numbers of shots; empty means all.

    `source` says where they are published.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = _TABLE
    datasets: Names = ()
    shots: Shots = ()
    options: Options = field(default_factory=dict)
    source: Text | None = None


@dataclass(frozen=True)
class MethodSpec:
    """One line of a table: a method of the registry, its options, and the label of the line.

    `published` names the row of the published table that the line is compared with. A table
    [[methods]] of the file is a line for each combination of the values in `vary`: `varied` holds
    the options in which the lines of a `family` differ.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = _TABLE
    name: Text
    label: Text = ""
    preset: Preset = "default"
    options: Options = field(default_factory=dict)
    vary: dict[str, Values] = field(default_factory=dict)
    projection: Text | None = None
    where: tuple[Override, ...] = ()
    published: Text = ""
    varied: Options = field(default_factory=dict)
    family: str = ""

    def options_on(self, dataset: str, shots: int) -> dict[str, Any]:
        """The options on a data set at a number of shots."""
        options = dict(self.options)
        for override in self.where:
            on_data = not override.datasets or dataset in override.datasets
            if on_data and (not override.shots or shots in override.shots):
                options |= override.options
        return options


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper: at these shots the mean of `better` is above that of `worse`."""

    __pydantic_config__: ClassVar[dict[str, str]] = _TABLE
    better: Text
    worse: Text
    text: Text | None = None
    shots: Shots = ()


@dataclass(frozen=True)
class Spec:
    """An experiment, read from the file `path`; its relative paths start from `folder`.

    `tests` names data sets on which the fitted models are tested besides their own. `measures` are
    further figures of every fitted model (`measures.MEASURES`). `drawing` is a figure that needs no
    runs.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = _TABLE
    name: Text
    title: Text
    path: Path
    folder: Path
    protocols: Names = (FULL_VALIDATION,)
    datasets: Names = ()
    tests: Names = ()
    encoders: Names = ()
    shots: Shots = (16,)
    seeds: Seeds = (1, 2, 3)
    methods: tuple[MethodSpec, ...] = ()
    claims: tuple[Claim, ...] = ()
    measures: Names = ()
    published: Text | None = None
    drawing: Literal["weights", "projection"] | None = None
    projection: Text | None = None


# Numbers in the name of a data set, at most so many.
_RANGE, MAX_RANGE = re.compile(r"\{(\d{1,6})\.\.(\d{1,6})\}"), 10_000
# The fields that a file does not give; then the keys of each kind of table in a file.
_SET_HERE = ("varied", "family")
_KEYS = {
    "": [one.name for one in fields(Spec) if one.name not in ("path", "folder")],
    "methods": [one.name for one in fields(MethodSpec) if one.name not in _SET_HERE],
    "methods.where": [one.name for one in fields(Override)],
    "claims": [one.name for one in fields(Claim)],
}


@cache
def _adapter() -> TypeAdapter[Spec]:
    """How pydantic reads a file."""
    from pydantic import TypeAdapter

    return TypeAdapter(Spec)


def read_spec(path: str | Path) -> Spec:
    """Read a spec; a mistake in it is one sentence that names the file and the key."""
    from pydantic import ValidationError as PydanticError

    file = Path(path)
    content = {"name": file.stem, "title": file.stem} | _read_toml(file)
    place = {"path": file.resolve(), "folder": file.resolve().parent}
    try:
        for key in content:
            if key not in _KEYS[""]:
                raise _Mistake(f"{key} {_unknown(key, '')}")
        read = _adapter().validate_python(content | place)
        lines = [line for number, one in enumerate(read.methods, 1) for line in _lines(number, one)]
        datasets = [name for written in read.datasets for name in _expanded(written)]
        spec = replace(read, methods=tuple(lines), datasets=tuple(datasets))
        _check(spec, read.methods)
    except PydanticError as error:
        raise DataError(f"In the spec {file}, {_sentence(error)}.") from None
    except _Mistake as mistake:
        raise DataError(f"In the spec {file}, {mistake}.") from None
    return spec


def _expanded(name: str) -> Iterator[str]:
    """A data set, or one for each number of a range: "split{00..39}.npz"."""
    found = _RANGE.search(name)
    if not found or not int(found[1]) <= int(found[2]) < int(found[1]) + MAX_RANGE:
        yield name
        return
    for number in range(int(found[1]), int(found[2]) + 1):
        yield f"{name[: found.start()]}{number:0{len(found[1])}}{name[found.end() :]}"


class _Mistake(Exception):
    """A mistake in a spec: the place of the key, and the problem."""


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > MAX_SPEC_FILE:
            raise DataError(f"The spec {file} is larger than {MAX_SPEC_FILE // 10**6} MB.")
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"The spec {file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise DataError(f"The spec {file} is not UTF-8 text.") from None
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"The spec {file} is not TOML: {error}.") from None


def _lines(number: int, entry: MethodSpec) -> Iterator[MethodSpec]:
    """The line of an entry, or one for each combination of the values that it varies."""
    place = f"methods[{number}]"
    if entry.name not in (known := known_methods()):
        near, names = did_you_mean(entry.name, known), ", ".join(sorted(known))
        raise _Mistake(f"{place}.name is {entry.name!r}, which is not a method{near}: use {names}")
    for key in _SET_HERE:
        if getattr(entry, key):
            raise _Mistake(f"{place}.{key} {_unknown(key, 'methods')}")
    label, projection = entry.label or entry.name, entry.projection or ""
    given = [(f"{place}.options", entry.options)]
    given += [(f"{place}.where[{n}].options", one.options) for n, one in enumerate(entry.where, 1)]
    for values in itertools.product(*entry.vary.values()):
        varied = dict(zip(entry.vary, values, strict=True))
        # A value that selects a projection is not an option of the method.
        settings = {key: value for key, value in varied.items() if f"{{{key}}}" not in projection}
        for key, options in [*given, (f"{place}.vary", settings)]:
            for option, value in options.items():
                if problem := option_problem(entry.name, option, value):
                    raise _Mistake(f"{key}.{option} {problem}")
        yield replace(
            entry,
            label=", ".join([label, *(f"{key} = {value}" for key, value in varied.items())]),
            options=entry.options | settings,
            projection=_filled(projection, varied) or None,
            varied=varied,
            family=label,
            published=_filled(entry.published or entry.name, varied),
        )


def _filled(text: str, varied: Mapping[str, Any]) -> str:
    """The text with {option} replaced by its value; other braces stay."""
    for key, value in varied.items():
        text = text.replace(f"{{{key}}}", str(value))
    return text


def _check(spec: Spec, entries: Sequence[MethodSpec]) -> None:
    """Check what the types of the fields do not cover."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", spec.name):
        raise _Mistake(f"name must be small letters, digits and hyphens, got {spec.name!r}")
    for key, kind, given, choices in (
        ("protocols", "protocol", spec.protocols, PROTOCOLS),
        ("measures", "measure", spec.measures, MEASURES),
    ):
        for name in given:
            if name not in choices:
                near, names = did_you_mean(name, choices), ", ".join(map(repr, choices))
                raise _Mistake(f"{key} has no {kind} {name!r}{near}: use {names}")
    if not spec.methods and spec.drawing is None:
        raise _Mistake("methods needs at least one [[methods]] with a name")
    labels = [method.label for method in spec.methods]
    if repeated := [label for i, label in enumerate(labels) if label in labels[:i]]:
        raise _Mistake(f"methods has the label {repeated[0]!r} twice: labels must differ")
    if spec.methods and not spec.datasets:
        raise _Mistake("datasets needs at least one data set")
    paths = [Path(dataset) for dataset in spec.datasets]
    known = {*catalogue(), *(path.name for path in paths), *(path.stem for path in paths)}
    known |= {path.name.replace(".npz", "") for path in paths}
    for number, entry in enumerate(entries, 1):
        for row, override in enumerate(entry.where, 1):
            if unknown := [name for name in override.datasets if name not in known]:
                raise _Mistake(
                    f"methods[{number}].where[{row}].datasets names {unknown[0]!r}"
                    f"{did_you_mean(unknown[0], known)}, which is not a data set of this spec"
                )
    for number, claim in enumerate(spec.claims, 1):
        for key, label in (("better", claim.better), ("worse", claim.worse)):
            if label not in labels:
                raise _Mistake(
                    f"claims[{number}].{key} names {label!r}, which is the label of no method"
                )


def _unknown(key: str, table: str) -> str:
    return f"is not known{did_you_mean(key, _KEYS[table])}: use {', '.join(_KEYS[table])}"


_PROBLEMS = {
    "dict_type": "must be a table",
    "literal_error": "must be {expected}",
    "tuple_type": "must be written as [[{table}]]",
    "dataclass_type": "must be written as [[{table}]]",
}


def _sentence(errors: PydanticError) -> str:
    """The first error of pydantic as place and problem."""
    error = errors.errors()[0]
    parts = [f"[{part + 1}]" if isinstance(part, int) else f".{part}" for part in error["loc"]]
    keys = [part for part in error["loc"] if isinstance(part, str)]
    place = "".join(parts)[1:]
    match error["type"]:
        case "unexpected_keyword_argument":
            return f"{place} {_unknown(keys[-1], '.'.join(keys[:-1]))}"
        case "value_error":
            return f"{place} {error['ctx']['error']}"
        case "missing":
            return f"{place} is missing"
    problem = _PROBLEMS.get(error["type"], "must be text")
    words = problem.format(table=".".join(keys), **error.get("ctx", {}))
    return f"{place} {words}, got {shown(error['input'])}"
