"""`gpcache project`: two stores in, a projection folder out."""

import json

import pytest

from gpcache.similarity.folder import load_projection

QUICK = ("--neighbours", "4", "--batch-size", "6", "--epochs", "2")


@pytest.fixture(scope="module")
def stores(tmp_path_factory, shapes, shapes_store, prepare):
    """The features of twelve photos, and of two views of each."""
    views = tmp_path_factory.mktemp("stores") / "views.store"
    prepare("extract", shapes, "-o", views, "--views", "2", "--keep-views")
    return shapes_store, views


def test_a_projection_is_learned_and_says_how(run, stores, tmp_path):
    photos, views = stores
    place = tmp_path / "proj.gpp"
    code, out, err = run("project", photos, "--views", views, "-o", place, *QUICK, "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert (told["images"], told["views"], len(told["history"])) == (12, 2, 2)
    assert told["change"] > 0
    projection, facts = load_projection(place)
    assert facts.encoder == "lite"
    assert facts.options["neighbours"] == 4
    assert (facts.transductive, projection.matrix.shape) == (False, (1664, 1664))
    assert [path.name for path in tmp_path.iterdir()] == ["proj.gpp"]  # no checkpoint is left


def test_a_whitening_needs_no_training(run, stores, tmp_path):
    photos, views = stores
    arguments = ("--views", views, "-o", tmp_path / "w.gpp", "--kind", "whitening")
    code, out, _ = run("project", photos, *arguments, "--transductive")
    assert code == 0
    assert "none, closed form" in out
    assert "transductive" in out
    _, facts = load_projection(tmp_path / "w.gpp")
    assert (facts.source, facts.transductive, facts.history) == ("whitening", True, [])


def test_mistakes_are_one_sentence(mistake, stores, model, tmp_path):
    photos, views = stores
    place = ("-o", tmp_path / "p.gpp")
    assert "lower neighbours" in mistake("project", photos, "--views", views, *place)
    assert "no single views" in mistake("project", photos, "--views", photos, *place, *QUICK)
    assert "not a feature store" in mistake("project", tmp_path, "--views", views, *place)
    assert "a model of another kind" in mistake(
        "project", photos, "--views", views, "-o", model, *QUICK
    )
    assert "temperature must be" in mistake(
        "project", photos, "--views", views, *place, "--temperature", "0"
    )
    assert list(tmp_path.iterdir()) == []


def test_what_was_learned_from_the_photos_at_hand_serves_a_fit(run, stores, shapes, tmp_path):
    photos, views = stores
    place, fitted = tmp_path / "proj.gpp", tmp_path / "m.gpc"
    run("project", photos, "--views", views, "-o", place, *QUICK, "--transductive")
    code, out, _ = run("fit", shapes, "-o", fitted, "--projection", place, "--method", "gda")
    assert code == 0
    assert "from 12 unlabelled images with 2 views each; transductive" in out
    told = json.loads(run("inspect", fitted, "--json")[1])["projection"]
    assert (told["source"], told["transductive"], told["encoder"]) == ("contrastive", True, "lite")


def test_the_help_names_the_command_that_takes_it(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run("project", "--help")
    assert code == 0
    assert "--projection proj.gpp" in out
    assert "project" in run("--help")[1]
