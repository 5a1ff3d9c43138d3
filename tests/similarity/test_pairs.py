"""Originals and views are matched by what the images contain, or refused in one sentence."""

import io
import json
import tarfile

import numpy as np
import pytest
from PIL import Image

from gpcache import FeatureStore, StoreError
from gpcache.features.extract import extract
from gpcache.images.augment import Views
from gpcache.images.sources import open_source
from gpcache.similarity import ProjectionOptions, learn_projection
from gpcache.similarity.pairs import paired_features


def test_images_are_matched_by_content(write_store, two_views):
    original = write_store("original", ["cat", "dog", "cat", "fox"])
    views = write_store("views", ["fox", "owl", "dog", "cat"], views=two_views)
    found = paired_features(original, views)
    # A copy counts once, and what only the views have does not count.
    codes = list(dict.fromkeys(item.hash for item in original.items()))
    np.testing.assert_array_equal(found.original, original.vectors(codes))
    np.testing.assert_array_equal(found.views, views.vectors(codes))
    assert (found.original.shape, found.views.shape) == ((3, 16), (3, 2, 16))


def test_one_split_can_be_taken(write_store, two_views):
    names = ["cat", "dog", "fox"]
    original = write_store("original", names, splits=["train", "test", "train"])
    views = write_store("views", names, views=two_views)
    assert len(paired_features(original, views, split="train").original) == 2
    with pytest.raises(StoreError, match="holds no images of the split 'val'"):
        paired_features(original, views, split="val")


def test_a_single_view_needs_not_be_kept_apart(write_store):
    original = write_store("original", ["cat", "dog"])
    views = write_store("views", ["cat", "dog"], views=Views(1))
    assert paired_features(original, views).views.shape == (2, 1, 16)


def test_stores_that_do_not_match_are_refused(write_store, two_views, other_encoder):
    original = write_store("original", ["cat", "dog", "fox"])
    lacking = write_store("lacking", ["dog"], views=two_views)
    with pytest.raises(StoreError, match="lacks the views of 2 of the 3 images"):
        paired_features(original, lacking)
    foreign = write_store("foreign", ["dog"], views=two_views, made_by=other_encoder)
    with pytest.raises(StoreError, match="their features do not mix"):
        paired_features(original, foreign)
    mean = write_store("mean", ["cat", "dog", "fox"], views=Views(4))
    for views in (original, mean):
        with pytest.raises(StoreError, match="holds no single views: extract the images with"):
            paired_features(original, views)
    with pytest.raises(StoreError, match="extract the original images without --views"):
        paired_features(mean, mean)


def test_captioned_shards_lead_to_a_projection(tmp_path, encoder, two_views):
    """As CC3M comes: a photo, its caption and a record under each key of a tar file."""
    shard = tmp_path / "00000.tar"
    generator = np.random.default_rng(0)
    with tarfile.open(shard, "w") as archive:
        for number in range(8):
            photo = io.BytesIO()
            pixels = generator.integers(0, 255, (24, 24, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(photo, "JPEG")
            notes = json.dumps({"caption": f"photo {number}", "url": "", "status": "success"})
            for suffix, content in (
                ("jpg", photo.getvalue()),
                ("txt", f"photo {number}".encode()),
                ("json", notes.encode()),
            ):
                member = tarfile.TarInfo(f"{number:09}.{suffix}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    for name, views in (("original", None), ("views", two_views)):
        report = extract(open_source(shard), tmp_path / name, encoder, views=views, workers=1)
        assert (report.encoded, report.refused) == (8, [])
    stores = (FeatureStore.open(tmp_path / name) for name in ("original", "views"))
    options = ProjectionOptions(neighbours=4, batch_size=4, epochs=2)
    projection, history = learn_projection(*paired_features(*stores), options=options, device="cpu")
    assert (projection.dim, len(history)) == (16, 2)
