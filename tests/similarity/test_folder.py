"""The projection folder: what was written comes back; another encoder, kind or byte does not."""

import json
from dataclasses import replace

import pytest
import torch

from gpcache import DataError, EncoderError, ModelFileError
from gpcache.similarity import ProjectionFacts, SimilarityProjection
from gpcache.similarity.folder import load_projection, open_projection, save_projection
from gpcache.similarity.projection import origin
from gpcache.support.array_folders import save_folder


@pytest.fixture
def facts(encoder):
    return ProjectionFacts(
        source="contrastive",
        encoder=encoder.name,
        fingerprint=encoder.fingerprint,
        images=1234,
        views=2,
        change=0.25,
        options={"temperature": 0.07},
        history=[4.5, 3.25],
    )


@pytest.fixture
def projection():
    generator = torch.Generator().manual_seed(0)
    return SimilarityProjection(
        (torch.randn(4, 16, generator=generator), torch.randn(16, 4, generator=generator)), False
    )


def test_it_comes_back_as_it_was(tmp_path, projection, facts):
    save_projection(tmp_path / "a.gpp", projection, facts)
    found, told = load_projection(tmp_path / "a.gpp")
    assert told == found.facts == facts
    assert found.residual is False
    assert all(map(torch.equal, found.weights, projection.weights))
    card = (tmp_path / "a.gpp" / "README.md").read_text()
    assert "1,234 unlabelled images" in card
    assert "mean sine of 0.250" in card
    assert "4.5000, 3.2500" in card
    assert "ransductive" not in card


def test_a_projection_of_what_is_to_be_judged_says_so(tmp_path, projection, facts, encoder):
    own = ProjectionFacts(
        "whitening", encoder.name, encoder.fingerprint, 9, 2, 0.5, transductive=True
    )
    save_projection(tmp_path / "a.gpp", projection, facts)
    save_projection(tmp_path / "a.gpp", projection, own)
    assert load_projection(tmp_path / "a.gpp")[1].transductive
    assert "**Transductive:**" in (tmp_path / "a.gpp" / "README.md").read_text()


def test_another_encoder_is_refused(facts, projection, encoder, other_encoder):
    known = SimilarityProjection(projection.weights, facts=facts)
    known.require_encoder(encoder)
    with pytest.raises(EncoderError, match=r"learn one for this encoder with gpcache project\."):
        known.require_encoder(other_encoder)
    projection.require_encoder(other_encoder)  # nobody knows what it was learned for


def test_it_is_told_where_a_projection_came_from(facts):
    assert origin(facts) == "contrastive, from 1,234 unlabelled images with 2 views each"
    own = origin(replace(facts, source="whitening", transductive=True))
    assert own.startswith("whitening, from 1,234")
    assert own.endswith("; transductive: those are the test images")
    assert origin(None) == "of unknown origin"


def test_a_projection_is_opened_from_its_folder_or_is_itself(tmp_path, projection, facts):
    save_projection(tmp_path / "a.gpp", projection, facts)
    for place in (tmp_path / "a.gpp", str(tmp_path / "a.gpp")):
        assert torch.equal(open_projection(place).matrix, projection.matrix)
    assert open_projection(projection) is projection
    assert open_projection(None) is None


def test_a_damaged_projection_may_be_replaced(tmp_path, projection, facts):
    save_projection(tmp_path / "a.gpp", projection, facts)
    (tmp_path / "a.gpp" / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ModelFileError, match="is damaged"):
        load_projection(tmp_path / "a.gpp")
    save_projection(tmp_path / "a.gpp", projection, facts)
    assert load_projection(tmp_path / "a.gpp")[1] == facts


def test_damage_is_found(tmp_path, projection, facts):
    save_projection(tmp_path / "a.gpp", projection, facts)
    config = tmp_path / "a.gpp" / "config.json"
    told = json.loads(config.read_text())
    config.write_text(json.dumps(told | {"transductive": True}))
    with pytest.raises(ModelFileError, match="is damaged"):
        load_projection(tmp_path / "a.gpp")


def test_models_of_another_kind_are_left_alone(tmp_path, projection, facts):
    save_folder(tmp_path / "pets.gpc", {"model": {}}, {"keys": torch.zeros(1).numpy()}, "")
    before = (tmp_path / "pets.gpc" / "config.json").read_bytes()
    with pytest.raises(ModelFileError, match="is not a similarity projection"):
        load_projection(tmp_path / "pets.gpc")
    with pytest.raises(DataError, match="is a model of another kind: choose another name"):
        save_projection(tmp_path / "pets.gpc", projection, facts)
    assert (tmp_path / "pets.gpc" / "config.json").read_bytes() == before
