"""The package as a whole: its version, its public names, and what importing it costs."""

import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import gpcache
from gpcache import errors, metrics

HEAVY = ("torch", "numpy", "sklearn", "scipy", "PIL")
ROOT = Path(__file__).parent.parent


def loaded_after(code: str) -> list[str]:
    """The heavy packages that a fresh interpreter has loaded after running `code`."""
    report = f"import sys; print(*(name for name in {HEAVY} if name in sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True
    )
    return result.stdout.splitlines()[-1].split()


def test_importing_gpcache_imports_nothing_heavy():
    assert loaded_after("import gpcache; dir(gpcache); gpcache.DataError") == []


def test_estimators_do_not_need_what_servers_and_benchmarks_need():
    """They also run on machines that have torch and scikit-learn, and little else."""
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['pydantic', 'jinja2', 'rich', 'typer']))\n"
        "import gpcache; gpcache.GPCacheClassifier().fit([[1, 0], [0, 1]], [0, 1])"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["demo", "--help"], []])
def test_help_and_version_import_nothing_heavy(arguments):
    code = f"""
import sys
from gpcache.cli.app import main
sys.argv = ["gpcache", *{arguments}]
try:
    main()
except SystemExit:
    pass
"""
    assert loaded_after(code) == []


def test_no_command_needs_anything_heavy_for_its_help():
    commands = ["fit", "predict", "evaluate", "check", "suggest", "add", "remove", "relabel"]
    commands += ["inspect", "export", "extract", "store", "store:info", "store:verify", "demo"]
    code = f"""
import sys
from gpcache.cli.app import main
for command in {commands}:
    sys.argv = ["gpcache", *command.split(":"), "--help"]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, command
"""
    assert loaded_after(code) == []


def test_the_public_names_are_few():
    estimators = {"GPCacheClassifier", "GPCacheFClassifier", "PaperGPCacheClassifier"}
    others = {"TextPrior", "ImageClassifier", "FeatureStore", "Prompts"}
    functions = {"load_encoder", "text_weights", "__version__"}
    raised = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert set(gpcache.__all__) == estimators | others | functions | raised
    assert set(gpcache.__all__) <= set(dir(gpcache))
    for name in gpcache.__all__:
        assert getattr(gpcache, name) is not None


@pytest.mark.parametrize(
    ("module", "name", "instead"),
    [
        ("gpcache", "GDAClassifier", "from gpcache.methods import GDAClassifier"),
        ("gpcache", "GroupedCache", "GPCacheClassifier now fits any number of shots"),
        ("gpcache", "ZeroShotClassifier", "from gpcache.methods import ZeroShotClassifier"),
        ("gpcache.metrics", "brier", "use sklearn.metrics.brier_score_loss"),
        ("gpcache.metrics", "p_values", "p_values is in gpcache.metrics.conformal"),
    ],
)
def test_a_name_that_moved_says_where_to(module, name, instead):
    with pytest.raises(ImportError, match=re.escape(instead)):
        getattr(importlib.import_module(module), name)
    with pytest.raises(ImportError, match=re.escape(instead)):
        exec(f"from {module} import {name}")


def test_every_error_is_public_and_ours():
    defined = {name: value for name, value in vars(errors).items() if isinstance(value, type)}
    assert set(defined) <= set(gpcache.__all__)
    assert all(issubclass(error, gpcache.GPCacheError) for error in defined.values())


def test_bad_data_is_a_value_error_and_a_missing_extra_an_import_error():
    assert issubclass(gpcache.DataError, ValueError)
    assert issubclass(gpcache.MissingExtraError, ImportError)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'gpcache' has no attribute 'GPCash'"):
        _ = gpcache.GPCash
    with pytest.raises(AttributeError, match="'gpcache' has no attribute 'GPCashClassifier'"):
        _ = gpcache.GPCashClassifier
    with pytest.raises(AttributeError, match=r"'gpcache\.metrics' has no attribute 'ecce'"):
        _ = metrics.ecce


def test_the_version_is_written_once():
    assert re.fullmatch(r"\d+\.\d+\.\d+", gpcache.__version__)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["dynamic"] == ["version"]


def requirements(*, leave_out):
    """Name → lower bound, of the base and of every extra that is not left out."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].items()
    lists = [project["dependencies"], *(some for name, some in extras if name not in leave_out)]
    pattern = r"([\w-]+)(?:\[[\w,]+\])?(?:>=([\d.]+))?"
    found = (re.fullmatch(pattern, one) for some in lists for one in some)
    return {one[1]: one[2] for one in found if one[1] != "gpcache"}


def test_every_package_has_a_lower_bound_and_ci_tries_it():
    """Those of `clip` cannot be installed beside the others; those for developers are not ours."""
    bounds = requirements(leave_out={"clip", "test", "dev", "docs"})
    lines = (ROOT / "constraints-oldest.txt").read_text().splitlines()
    tried = dict(line.split("==") for line in lines if not line.startswith("#"))
    # The oldest torch is tried on a machine with a GPU.
    assert tried.pop("torch") in (ROOT / "constraints.txt").read_text()
    assert bounds.pop("torch") == "2.11.0"
    assert bounds == tried


def test_every_package_for_users_is_in_the_table_of_licences():
    table = (ROOT / "docs" / "licences.md").read_text()
    for name in requirements(leave_out={"test", "dev", "docs"}):
        assert f"\n| {name.lower().replace('_', '-')} | " in table


def test_the_citation_names_this_version():
    lines = (ROOT / "CITATION.cff").read_text().splitlines()
    assert f"version: {gpcache.__version__}" in lines


def test_the_types_are_shipped():
    assert (Path(gpcache.__file__).parent / "py.typed").exists()
