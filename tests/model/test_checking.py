"""Images through an encoder to an audit: rows, names, bursts and refusals."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gpcache.encoders.prompts import Prompts, text_weights
from gpcache.errors import DataError
from gpcache.features.extract import gather
from gpcache.images.sources import from_iterable, open_source
from gpcache.methods import TextPrior
from gpcache.model.audit import audit
from gpcache.model.audit.images import check_images
from gpcache.model.training_images import Example

TINY = Path(__file__).parents[1] / "features" / "tiny.py"
spec = importlib.util.spec_from_file_location("tiny", TINY)
tiny = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tiny)


def picture(label, seed):
    """Pictures of one label are alike."""
    base = np.random.default_rng(ord(label)).integers(40, 216, (8, 8, 3))
    noise = np.random.default_rng([ord(label), seed]).normal(0, 30, (8, 8, 3))
    return np.kron((base + noise).clip(0, 255), np.ones((5, 5, 1))).astype(np.uint8)


@pytest.fixture
def encoder():
    return tiny.ColourEncoder()


@pytest.fixture
def folder(tmp_path):
    """Six photos of each of three classes, in two bursts; one of a's is also among the b's."""
    root = tmp_path / "photos"
    for label in "abc":
        for seed in range(6):
            path = root / label / f"burst{seed // 3}" / f"{seed}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture(label, seed)).save(path)
    Image.fromarray(picture("a", 0)).save(root / "b" / "copy.png")
    (root / "c" / "broken.jpg").write_bytes(b"no image")
    return root


def test_what_is_found_is_what_an_audit_of_the_features_finds(folder, encoder):
    found = check_images(open_source(folder), encoder)
    gathered = gather(open_source(folder), encoder)
    records, hashes, rows = gathered.records, gathered.hashes, gathered.features
    names = [record.name for record in records]
    prompts = Prompts.from_templates(["a", "b", "c"])
    prior = TextPrior(list("abc"), text_weights(encoder, prompts), encoder.logit_scale)
    examples = [
        Example(record.name, record.label, image_hash)
        for record, image_hash in zip(records, hashes, strict=True)
    ]
    expected = audit(rows, examples, text_prior=prior)
    assert found.audit == expected
    assert found.names == names
    assert found.classes == 3
    assert [one.name for one in found.refused] == ["c/broken.jpg"]
    (leak,) = found.audit.of("leak")
    assert {found.names[leak.row], found.names[leak.other]} == {"a/burst0/0.png", "b/copy.png"}


def test_copies_share_their_features_and_all_rows_are_there(folder, encoder):
    found = gather(open_source(folder), encoder)
    records, hashes, rows, refused = found.records, found.hashes, found.features, found.refused
    names = [record.name for record in records]
    assert rows.shape == (19, 16)
    first, second = names.index("a/burst0/0.png"), names.index("b/copy.png")
    assert hashes[first] == hashes[second]
    np.testing.assert_array_equal(rows[first], rows[second])
    direct = encoder.encode_images([folder / name for name in names])
    np.testing.assert_allclose(rows, direct, atol=1e-6)
    assert "not an image" in refused[0].reason


def test_folders_inside_a_class_can_be_bursts(folder, encoder):
    """A photo that is alike only within its burst has nothing left to be judged by."""
    for seed in (1, 2, 3, 4, 5):
        (folder / "a" / f"burst{seed // 3}" / f"{seed}.png").unlink()
    Image.fromarray(picture("a", 1)).save(folder / "a" / "burst0" / "1.png")
    (folder / "b" / "copy.png").unlink()
    notices = {
        groups: " ".join(check_images(open_source(folder), encoder, groups=groups).audit.notices)
        for groups in ("list", "folder", "none")
    }
    assert "Labels not checked: 2 (the first is that of a/burst0/0.png)" in notices["folder"]
    assert "Labels not checked" not in notices["list"] + notices["none"]


def test_a_list_names_its_groups(folder, encoder):
    rows = [f"{label}/burst0/{i}.png,{label},{label}" for label in "ab" for i in range(3)]
    (folder / "list.csv").write_text("\n".join(["path,label,group", *rows]))
    source = open_source(folder / "list.csv")
    assert any("No class has two" in n for n in check_images(source, encoder).audit.notices)
    alone = check_images(source, encoder, groups="none").audit.notices
    assert not any("No class has two" in notice for notice in alone)


def test_text_can_be_left_out(encoder):
    """With text, the picture of an a that is called b gets other odds than without."""
    pairs = [(picture(label, seed), label) for label in "abc" for seed in range(6)]
    pairs[0] = (pairs[0][0], "b")
    with_text, without = (
        check_images(from_iterable(pairs), encoder, text=text).audit.of("label")
        for text in (True, False)
    )
    assert without[0].row == 0
    assert without[0].suggestion == "a"
    assert with_text != without


def test_images_without_a_label_are_left_to_the_audit(encoder):
    pairs = [(picture(label, seed), label) for label in "ab" for seed in range(3)]
    found = check_images(from_iterable([*pairs, picture("c", 0)]), encoder)
    assert len(found.names) == 7
    assert any("without a label were ignored: 1" in notice for notice in found.audit.notices)


@pytest.mark.parametrize(
    ("items", "options", "phrase"),
    [
        ([picture("a", 0)], {}, "no labelled image in 'iterable'"),
        ([], {}, "no labelled image in 'iterable'"),
        ([(b"no image", "a")], {}, "no labelled image in 'iterable'"),
        ([(picture("a", 0), "a")], {"groups": "burst"}, "groups must be one of list, folder, none"),
    ],
)
def test_bad_input_is_one_sentence(items, options, phrase, encoder):
    with pytest.raises(DataError, match=rf"^[^\n]*{phrase}[^\n]*\.$"):
        check_images(from_iterable(items), encoder, **options)
