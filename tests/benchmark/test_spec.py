"""Specs: what is written is what is read, and a mistake names the file and the key."""

import re
from pathlib import Path

import pytest

from gpcache.benchmark.published import published
from gpcache.benchmark.spec import read_spec
from gpcache.errors import DataError
from gpcache.methods.registry import registry

PAPER = Path(__file__).parents[2] / "benchmarks" / "paper"
SHARED = PAPER.with_name("shared")


def test_a_spec_says_what_runs(write_spec):
    spec = read_spec(write_spec())
    assert (spec.name, spec.title, spec.folder) == ("toy", "A toy", write_spec().parent)
    assert (spec.shots, spec.seeds, spec.datasets) == ((2, 4), (1, 2), ("toy.npz",))
    assert [method.label for method in spec.methods] == ["ZS", "Tip", "GPCache"]
    assert [method.preset for method in spec.methods] == ["default", "default", "paper"]


def test_defaults_are_three_draws_of_sixteen_shots_on_full_validation(write_spec):
    spec = read_spec(write_spec('datasets = "a.npz"\n[[methods]]\nname = "gda"\n', name="short"))
    assert (spec.name, spec.shots, spec.seeds) == ("short", (16,), (1, 2, 3))
    assert spec.protocols == ("full validation",)


def test_varied_options_make_a_line_for_each_combination(write_spec):
    text = """
datasets = ["a.npz"]
[[methods]]
name = "gpcache"
label = "GP"
options = { precision = "grouped" }
published = "g={n_groups}"
projection = "p-{images}.gpp"
vary = { n_groups = [2, 4], images = [10, 20] }
"""
    methods = read_spec(write_spec(text)).methods
    assert [method.label for method in methods] == [
        "GP, n_groups = 2, images = 10",
        "GP, n_groups = 2, images = 20",
        "GP, n_groups = 4, images = 10",
        "GP, n_groups = 4, images = 20",
    ]
    assert methods[1].options == {"precision": "grouped", "n_groups": 2}
    assert (methods[1].projection, methods[1].published) == ("p-20.gpp", "g=2")
    assert {method.family for method in methods} == {"GP"}


def test_exemptions_hold_only_where_they_say(write_spec):
    text = """
datasets = ["a", "b"]
shots = [4, 16]
[[methods]]
name = "gpcache"
options = { n_folds = 4 }
[[methods.where]]
datasets = ["a"]
shots = [16]
options = { precision = "grouped", n_folds = 6 }
"""
    method = read_spec(write_spec(text)).methods[0]
    assert method.options_on("a", 16) == {"precision": "grouped", "n_folds": 6}
    assert method.options_on("a", 4) == method.options_on("b", 16) == {"n_folds": 4}


METHOD = '[[methods]]\nname = "gda"\n'
GPCACHE = '[[methods]]\nname = "gpcache"\n'
MISTAKES = {
    'colour = "red"\n' + METHOD: "colour is not known",
    METHOD + "speed = 3\n": "methods[1].speed is not known",
    METHOD + "[[methods.where]]\nwhen = 1\n": "methods[1].where[1].when is not known",
    'protocols = ["half"]\n' + METHOD: "protocols has no protocol 'half': use 'full validation'",
    "shots = [0]\n" + METHOD: "shots must be different whole numbers of 1 or more",
    "shots = [true]\n" + METHOD: "shots must be different whole numbers of 1 or more",
    "seeds = [1, 1]\n" + METHOD: "seeds must be different whole numbers",
    "title = 3\n" + METHOD: "title must be text, got 3",
    'name = "../x"\n' + METHOD: "name must be small letters, digits and hyphens",
    METHOD + METHOD: "methods has the label 'gda' twice",
    METHOD + 'preset = "best"\n': "methods[1].preset must be 'default' or 'paper'",
    METHOD + "options = 3\n": "methods[1].options must be a table",
    METHOD + "vary = { a = 1 }\n": "methods[1].vary.a must be a list of values",
    '[[methods]]\nname = "gpcach"\n': (
        "methods[1].name is 'gpcach', which is not a method (did you mean 'gpcache'?): use ape, "
        "ape-t"
    ),
    METHOD + "options = { alfa = 1.0 }\n": (
        "methods[1].options.alfa is not an option of 'gda' (did you mean 'alpha'?): use alpha"
    ),
    METHOD
    + 'options = { device = "cpu" }\n': "methods[1].options.device is not an option of 'gda'",
    METHOD + "vary = { speed = [1] }\n": "methods[1].vary.speed is not an option of 'gda'",
    METHOD + "[[methods.where]]\noptions = { speed = 1 }\n": (
        "methods[1].where[1].options.speed is not an option of 'gda'"
    ),
    METHOD + '[[methods.where]]\ndatasets = ["imagenett"]\n': (
        "methods[1].where[1].datasets names 'imagenett' (did you mean 'imagenet'?)"
    ),
    GPCACHE + 'options = { precision = "exakt" }\n': (
        "methods[1].options.precision must be 'auto' or 'exact' or 'explicit' or 'grouped' or "
        "'nystrom' or 'fourier' or 'class_mean', got 'exakt' (did you mean 'exact'?)"
    ),
    GPCACHE + 'vary = { precision = ["exact", "groups"] }\n': (
        "methods[1].vary.precision must be 'auto' or 'exact' or"
    ),
    GPCACHE + 'options = { beta = "big" }\n': (
        "methods[1].options.beta must be 'auto' or a number, got 'big'"
    ),
    GPCACHE + "options = { n_groups = 2.5 }\n": (
        "methods[1].options.n_groups must be a whole number, got 2.5"
    ),
    GPCACHE + "options = { noise = true }\n": (
        "methods[1].options.noise must be 'auto' or a number, got True"
    ),
    GPCACHE + 'options = { confidence_scaling = "yes" }\n': (
        "methods[1].options.confidence_scaling must be true or false, got 'yes'"
    ),
    METHOD + '[[claims]]\nbetter = "gda"\nworse = "x"\n': "claims[1].worse names 'x'",
    "methods = 3\n": "methods must be written as [[methods]]",
    "": "methods needs at least one",
}


@pytest.mark.parametrize(("text", "sentence"), MISTAKES.items(), ids=MISTAKES.values())
def test_a_mistake_is_one_sentence_that_names_file_and_key(write_spec, text, sentence):
    path = write_spec('datasets = ["a.npz"]\n' + text)
    with pytest.raises(DataError) as error:
        read_spec(path)
    assert sentence in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("method", registry())
def test_every_registered_method_has_options_that_a_spec_may_set(write_spec, method):
    text = f'datasets = ["a.npz"]\n[[methods]]\nname = "{method}"\noptions = {{ xyzzy = 1 }}\n'
    sentence = rf"options\.xyzzy is not an option of '{re.escape(method)}': use \w+"
    with pytest.raises(DataError, match=sentence):
        read_spec(write_spec(text))


def test_what_is_no_toml_or_not_there_is_said(write_spec, tmp_path):
    with pytest.raises(DataError, match="is not TOML: "):
        read_spec(write_spec("a = = 1"))
    with pytest.raises(DataError, match="cannot be read"):
        read_spec(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b'title = "\xe9"')
    with pytest.raises(DataError, match="is not UTF-8 text"):
        read_spec(tmp_path / "latin.toml")


@pytest.mark.parametrize("path", sorted(SHARED.glob("*.toml")), ids=lambda path: path.stem)
def test_the_specs_of_stored_features_can_be_read(path):
    spec = read_spec(path)
    assert spec.name == path.stem
    # Files that prepare_data.py writes, or photos.
    parts = "text|half|other-half|[235]-classes-[0-9]"
    files = re.compile(rf"(splits/)?[a-z0-9_-]+\.npz(:({parts}))?|images/[a-z0-9]+")
    assert all(map(files.fullmatch, spec.datasets))
    for method in spec.methods:
        assert all(override.source for override in method.where)


def test_a_range_is_one_data_set_for_each_number(tmp_path):
    names = ["a{08..11}.npz", "b{1..2}-{3..4}", "c{2..1}", "d{0..99999}"]
    (tmp_path / "ranges.toml").write_text(f"datasets = {names}\n{METHOD}")
    expanded = ["a08.npz", "a09.npz", "a10.npz", "a11.npz", "b1-{3..4}", "b2-{3..4}"]
    assert list(read_spec(tmp_path / "ranges.toml").datasets) == expanded + names[2:]


@pytest.mark.parametrize("path", sorted(PAPER.glob("*.toml")), ids=lambda path: path.stem)
def test_the_specs_of_the_paper_name_published_rows(path):
    spec = read_spec(path)
    assert spec.name == path.stem
    if spec.published is None:
        return
    table = published(spec.published)
    named = {method.published for method in spec.methods}
    unknown = named - set(table.rows) - {"unpublished"}
    # A zero-shot line stands beside curves that were published without it.
    assert unknown <= {"zero-shot"}
    assert set(table.rows) <= named


def test_the_paper_groups_classes_on_two_data_sets_at_sixteen_shots():
    spec = read_spec(PAPER / "shots.toml")
    method = next(method for method in spec.methods if method.label == "GPCache-F")
    grouped = {
        (dataset, shots)
        for dataset in spec.datasets
        for shots in spec.shots
        if method.options_on(dataset, shots).get("precision") == "grouped"
    }
    assert grouped == {("imagenet", 16), ("sun397", 16)}
