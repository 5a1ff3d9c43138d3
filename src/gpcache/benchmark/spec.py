"""A spec: which methods run on which data, read from TOML; what it must not say is an error."""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from reprlib import repr as shown
from typing import Any, Literal, get_args

from gpcache.benchmark.allowed import check_method, check_options, nearest
from gpcache.benchmark.datasets import catalogue
from gpcache.benchmark.protocols import FULL_VALIDATION, PROTOCOLS
from gpcache.errors import DataError

Preset = Literal["default", "paper"]
Drawing = Literal["weights", "projection"]
MAX_SPEC_FILE = 1_000_000
_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")

_TOP = (
    "name", "title", "protocols", "datasets", "tests", "encoders", "shots", "seeds", "published",
    "drawing", "projection", "methods", "claims",
)  # fmt: skip
_METHOD = ("name", "label", "preset", "options", "vary", "projection", "where", "published")
_WHERE = ("datasets", "shots", "options")
_CLAIM = ("text", "better", "worse", "shots")


@dataclass(frozen=True)
class Exemption:
    """Options that hold only on these data sets and these numbers of shots; empty means all."""

    datasets: tuple[str, ...]
    shots: tuple[int, ...]
    options: Mapping[str, Any]


@dataclass(frozen=True)
class MethodSpec:
    """One line of a table: a method of the registry, its options, and what the line is called.

    `varied` holds the options that a family of lines differs in; `published` is the row of the
    published table that the line is held against.
    """

    name: str
    label: str
    preset: Preset = "default"
    options: Mapping[str, Any] = field(default_factory=dict)
    projection: str | None = None
    where: tuple[Exemption, ...] = ()
    varied: Mapping[str, Any] = field(default_factory=dict)
    family: str = ""
    published: str = ""

    def options_on(self, dataset: str, shots: int) -> dict[str, Any]:
        """The options on a data set at a number of shots."""
        options = dict(self.options)
        for exemption in self.where:
            on_data = not exemption.datasets or dataset in exemption.datasets
            if on_data and (not exemption.shots or shots in exemption.shots):
                options |= exemption.options
        return options


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper: at these shots the first method's mean is above the second's."""

    text: str
    better: str
    worse: str
    shots: tuple[int, ...]


@dataclass(frozen=True)
class Spec:
    """An experiment, read from the file `path`; its relative paths start from `folder`.

    `tests` names data sets on which the fitted models are tested beside their own. `drawing` is a
    figure that needs no runs.
    """

    name: str
    title: str
    path: Path
    folder: Path
    protocols: tuple[str, ...] = (FULL_VALIDATION,)
    datasets: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    encoders: tuple[str, ...] = ()
    shots: tuple[int, ...] = (16,)
    seeds: tuple[int, ...] = (1, 2, 3)
    methods: tuple[MethodSpec, ...] = ()
    claims: tuple[Claim, ...] = ()
    published: str | None = None
    drawing: Drawing | None = None
    projection: str | None = None


def read_spec(path: str | Path) -> Spec:
    """Read a spec; a mistake in it is one sentence that names the file and the key."""
    file = Path(path)
    table = _Table(file, "", _content(file), _TOP)
    drawing = table.choice("drawing", get_args(Drawing))
    datasets = table.texts("datasets")
    methods = tuple(
        variant
        for entry in table.tables("methods", _METHOD)
        for variant in _methods(entry, datasets)
    )
    if not methods and drawing is None:
        raise table.error("methods", "needs at least one [[methods]] with a name")
    labels = [method.label for method in methods]
    if repeated := [label for i, label in enumerate(labels) if label in labels[:i]]:
        raise table.error(
            "methods", f"has the label {repeated[0]!r} twice: labels tell lines apart"
        )
    if methods and not datasets:
        raise table.error("datasets", "needs at least one data set")
    protocols = table.texts("protocols") or (FULL_VALIDATION,)
    if unknown := [name for name in protocols if name not in PROTOCOLS]:
        names = ", ".join(map(repr, PROTOCOLS))
        near = nearest(unknown[0], PROTOCOLS)
        raise table.error("protocols", f"has no protocol {unknown[0]!r}{near}: use {names}")
    return Spec(
        name=_name(table),
        title=table.text("title") or file.stem,
        path=file.resolve(),
        folder=file.resolve().parent,
        protocols=protocols,
        datasets=datasets,
        tests=table.texts("tests"),
        encoders=table.texts("encoders"),
        shots=table.numbers("shots", least=1) or (16,),
        seeds=table.numbers("seeds", least=0) or (1, 2, 3),
        methods=methods,
        claims=tuple(_claim(entry, labels) for entry in table.tables("claims", _CLAIM)),
        published=table.text("published"),
        drawing=drawing,
        projection=table.text("projection"),
    )


def _content(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > MAX_SPEC_FILE:
            raise DataError(f"The spec {file} is larger than {MAX_SPEC_FILE // 10**6} MB.")
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"The spec {file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise DataError(f"The spec {file} is no UTF-8 text.") from None
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"The spec {file} is not TOML: {error}.") from None


def _name(table: _Table) -> str:
    name = table.text("name") or table.file.stem
    if not _NAME.fullmatch(name):
        raise table.error("name", f"must be small letters, digits and hyphens, got {name!r}")
    return name


def _methods(table: _Table, datasets: Sequence[str]) -> Iterator[MethodSpec]:
    """The method of an entry, or one for each combination of the values that it varies."""
    name = table.text("name", required=True) or ""
    check_method(name, table.error)
    label = table.text("label") or name
    entries = table.tables("where", _WHERE)
    common: dict[str, Any] = {
        "preset": table.choice("preset", get_args(Preset)) or "default",
        "where": tuple(_exemption(entry, name, datasets) for entry in entries),
        "family": label,
    }
    options, vary = table.table("options"), table.table("vary")
    check_options(name, "options", options, table.error)
    published, projection = table.text("published") or name, table.text("projection") or ""
    for key, values in vary.items():
        if not isinstance(values, list) or not values:
            raise table.error(f"vary.{key}", f"must be a list of values, got {shown(values)}")
    for values in itertools.product(*vary.values()):
        varied = dict(zip(vary, values, strict=True))
        words = ", ".join(f"{key} = {value}" for key, value in varied.items())
        # What tells projections apart is no option of the method.
        own = {key: value for key, value in varied.items() if f"{{{key}}}" not in projection}
        check_options(name, "vary", own, table.error)
        yield MethodSpec(
            name,
            f"{label}, {words}" if words else label,
            options=options | own,
            varied=varied,
            published=_filled(published, varied),
            projection=_filled(projection, varied) or None,
            **common,
        )


def _exemption(table: _Table, method: str, datasets: Sequence[str]) -> Exemption:
    """Options of some data sets; one that no run of the spec can meet is a mistake."""
    options = table.table("options")
    check_options(method, "options", options, table.error)
    names = table.texts("datasets")
    paths = [Path(dataset) for dataset in datasets]
    known = {*catalogue(), *(path.name for path in paths), *(path.stem for path in paths)}
    if unknown := [name for name in names if name not in known]:
        near = nearest(unknown[0], known)
        raise table.error(
            "datasets", f"names {unknown[0]!r}{near}, which is no data set of this spec"
        )
    return Exemption(names, table.numbers("shots", least=1), options)


def _filled(text: str, varied: Mapping[str, Any]) -> str:
    """The text with {option} replaced by its value; other braces stay."""
    for key, value in varied.items():
        text = text.replace(f"{{{key}}}", str(value))
    return text


def _claim(table: _Table, labels: Sequence[str]) -> Claim:
    better, worse = (table.text(key, required=True) or "" for key in ("better", "worse"))
    for key, label in (("better", better), ("worse", worse)):
        if label not in labels:
            raise table.error(key, f"names {label!r}, which is the label of no method")
    text = table.text("text") or f"{better} above {worse}"
    return Claim(text, better, worse, table.numbers("shots", least=1))


class _Table:
    """A table of the file: its values by kind, and errors that say where they are."""

    def __init__(
        self, file: Path, place: str, content: Mapping[str, Any], known: Sequence[str]
    ) -> None:
        self.file, self._place, self._content = file, place, content
        for key in content:
            if key not in known:
                raise self.error(key, f"is not known{nearest(key, known)}: use {', '.join(known)}")

    def error(self, key: str, problem: str) -> DataError:
        """The one sentence about a key."""
        return DataError(f"In the spec {self.file}, {self._place}{key} {problem}.")

    def text(self, key: str, *, required: bool = False) -> str | None:
        value = self._content.get(key)
        if value is None and not required:
            return None
        if not isinstance(value, str) or not value.strip():
            raise self.error(key, f"must be text, got {shown(value)}")
        return value

    def choice(self, key: str, choices: Sequence[str]) -> Any:
        value = self.text(key)
        if value is not None and value not in choices:
            raise self.error(key, f"must be {' or '.join(map(repr, choices))}, got {value!r}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        values = self._content.get(key, [])
        values = [values] if isinstance(values, str) else values
        good = isinstance(values, list) and all(isinstance(v, str) and v.strip() for v in values)
        if not good or len(set(values)) != len(values):
            raise self.error(key, f"must be a list of different texts, got {shown(values)}")
        return tuple(values)

    def numbers(self, key: str, *, least: int) -> tuple[int, ...]:
        values = self._content.get(key, [])
        values = values if isinstance(values, list) else [values]
        good = all(type(value) is int and value >= least for value in values)
        if not good or len(set(values)) != len(values):
            raise self.error(
                key, f"must be different whole numbers of {least} or more, got {shown(values)}"
            )
        return tuple(values)

    def table(self, key: str) -> dict[str, Any]:
        value = self._content.get(key, {})
        if not isinstance(value, dict):
            raise self.error(key, f"must be a table, got {shown(value)}")
        return value

    def tables(self, key: str, known: Sequence[str]) -> list[_Table]:
        values = self._content.get(key, [])
        if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
            raise self.error(key, f"must be written as [[{self._place}{key}]], got {shown(values)}")
        return [
            _Table(self.file, f"{self._place}{key}[{row}].", value, known)
            for row, value in enumerate(values, 1)
        ]
