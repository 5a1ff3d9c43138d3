"""The paper's data sets in their true layouts, whole and damaged, and the real split files."""

import json
import re
from pathlib import Path

import pytest

from gpcache.benchmark.datasets.catalogue import catalogue
from gpcache.benchmark.datasets.loading import check_datasets, load_dataset
from gpcache.encoders.lite import imagenet_classes
from gpcache.errors import DataError

# The seven whose split files are among the development data.
SEVEN = [
    "caltech101",
    "dtd",
    "eurosat",
    "oxford_flowers",
    "oxford_pets",
    "stanford_cars",
    "ucf101",
]


@pytest.mark.parametrize("name", [*SEVEN, "food101", "sun397"])
def test_a_miniature_with_a_split_file(name, tmp_path, miniature):
    content = miniature.write(tmp_path, name)
    dataset = load_dataset(name, tmp_path)
    assert dataset.class_names == dataset.spoken_names == miniature.known[name][-1]
    for part, split in (
        ("train", dataset.train),
        ("val", dataset.validation),
        ("test", dataset.test),
    ):
        assert split.paths == tuple(path for path, _, _ in content[part])
        assert split.labels.tolist() == [label for _, label, _ in content[part]]
        assert all((dataset.root / path).is_file() for path in split.paths)
    assert dataset.templates == catalogue()[name].templates


def test_aircraft_in_miniature(tmp_path, miniature):
    miniature.aircraft(tmp_path)
    dataset = load_dataset("fgvc_aircraft", tmp_path)
    assert dataset.class_names == ("707-320", "Cessna 172", "F-16A/B")
    assert miniature.counts(dataset) == (3, 9, 3, 6)
    assert dataset.train.paths[:2] == ("1000001.jpg", "1000002.jpg")
    assert dataset.train.labels.tolist() == [0, 1, 2] * 3
    assert all((dataset.root / path).is_file() for path in dataset.test.paths)


def test_imagenet_in_miniature(tmp_path, miniature):
    wnids = ["n01443537", "n01440764", "n04356056"]
    miniature.imagenet(tmp_path, wnids)
    table = "n01443537 goldfish\nn01440764 tench\nn04356056 sunglasses\nn04355933 sunglasses\n"
    (tmp_path / "imagenet/classnames.txt").write_text(table)
    (tmp_path / "imagenet/images/train/.DS_Store").write_bytes(b"")
    (tmp_path / "imagenet/images/train/n01440764/README.txt").write_bytes(b"")
    dataset = load_dataset("imagenet", tmp_path)
    assert dataset.class_names == ("tench", "goldfish", "sunglasses (3)")
    assert dataset.spoken_names == ("tench", "goldfish", "sunglasses")
    assert dataset.validation is None
    assert miniature.counts(dataset) == (3, 9, 0, 6)
    assert dataset.train.paths[0] == "train/n01440764/n01440764_0.JPEG"
    assert dataset.train.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert (dataset.root / dataset.test.paths[0]).is_file()


def test_imagenet_with_all_classes_needs_no_names(tmp_path, miniature):
    """The numbers of ImageNet's classes sort in the order of the names that ship."""
    wnids = [f"n{number:08d}" for number in range(1000)]
    miniature.imagenet(tmp_path, wnids, train=1, test=1)
    dataset = load_dataset("imagenet", tmp_path)
    assert list(dataset.spoken_names) == imagenet_classes()
    assert len(set(dataset.class_names)) == 1000
    assert dataset.class_names[:2] == ("tench", "goldfish")
    # A table with names of another kind gives way to those that ship.
    table = "".join(f"{wnid} other {wnid}\n" for wnid in wnids)
    (tmp_path / "imagenet/classnames.txt").write_text(table)
    assert load_dataset("imagenet", tmp_path).split_hash == dataset.split_hash


def test_two_classes_of_one_name_are_asked_about_alike(tmp_path, miniature):
    miniature.imagenet(tmp_path, ["n1", "n2", "n3"])
    (tmp_path / "imagenet/classnames.txt").write_text("n1 crane\nn2 cock\nn3 crane\n")
    dataset = load_dataset("imagenet", tmp_path)
    assert dataset.class_names == ("crane (0)", "cock", "crane (2)")
    assert dataset.prompts.class_names == dataset.class_names
    first, second, third = dataset.prompts.sentences
    assert first == third
    assert (len(first), first[0], second[0]) == (7, "itap of a crane.", "itap of a cock.")


def test_imagenet_for_domain_generalisation(tmp_path, miniature):
    images = "imagenetv2/imagenetv2-matched-frequency-format-val"
    for number in (0, 2, 10, 999):
        miniature.image(tmp_path / images / str(number) / "a.jpeg")
    dataset = load_dataset("imagenetv2", tmp_path)
    assert dataset.test.labels.tolist() == [0, 2, 10, 999]
    assert miniature.counts(dataset) == (1000, 0, 0, 4)
    assert list(dataset.spoken_names) == imagenet_classes()
    assert dataset.templates == catalogue()["imagenet"].templates
    for wnid in ("n01443537", "n01440764"):
        miniature.image(tmp_path / f"imagenet-sketch/images/{wnid}/sketch_0.JPEG")
    table = tmp_path / "imagenet-sketch/classnames.txt"
    table.write_text("n01440764 tench\nn01443537 goldfish\n")
    sketch = load_dataset("imagenet_sketch", tmp_path)
    assert sketch.class_names == dataset.class_names[:2] == ("tench", "goldfish")
    assert sketch.test.labels.tolist() == [0, 1]
    assert (miniature.counts(sketch), sketch.validation) == ((2, 0, 0, 2), None)


@pytest.mark.parametrize(
    "path",
    [
        "../secret.jpg",
        "a/../../secret.jpg",
        "/etc/passwd",
        "..\\secret.jpg",
        "C:\\x.jpg",
        "a\0.jpg",
    ],
)
def test_a_path_that_leaves_the_folder_is_refused(path, tmp_path, miniature):
    content = miniature.write(tmp_path, "dtd")
    content["test"].append([path, 0, "banded"])
    miniature.split(tmp_path, "dtd", content)
    with pytest.raises(DataError, match=r"DescribableTextures.json names .* leaves the folder"):
        load_dataset("dtd", tmp_path)


def test_missing_images_are_counted_and_the_first_is_named(tmp_path, miniature):
    content = miniature.write(tmp_path, "dtd")
    for path, _, _ in (content["train"][2], content["test"][0]):
        (tmp_path / "dtd/images" / path).unlink()
    first = re.escape(str(tmp_path / "dtd/images" / content["train"][2][0]))
    with pytest.raises(DataError, match=f"^2 images of 12 .* missing, the first is {first}\\.$"):
        load_dataset("dtd", tmp_path)


def test_a_damaged_split_file_is_named(tmp_path, miniature):
    miniature.write(tmp_path, "eurosat")
    file = tmp_path / "eurosat/split_zhou_EuroSAT.json"
    file.write_text(file.read_text()[:-9])
    with pytest.raises(DataError, match=r"split_zhou_EuroSAT.json is not JSON"):
        load_dataset("eurosat", tmp_path)
    file.unlink()
    with pytest.raises(DataError, match=r"split_zhou_EuroSAT.json cannot be read: No such file"):
        load_dataset("eurosat", tmp_path)
    content = miniature.write(tmp_path, "eurosat")
    miniature.split(tmp_path, "eurosat", content | {"test": []})
    with pytest.raises(DataError, match=r"EuroSAT in .*eurosat has no test images"):
        load_dataset("eurosat", tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("images_variant_val.txt", b"1 707-320\n2 Concorde\n", r"Line 2 of .*_val.txt must be"),
        ("images_variant_val.txt", b"1000001 707-320\n", r"_val.txt lists '1000001', .*train.txt"),
        ("images_variant_test.txt", b"../1 707-320\n", r"_test.txt names '../1.jpg', which leaves"),
        ("images_variant_test.txt", b"\xff\xfe", r"_test.txt is not UTF-8 text"),
        ("variants.txt", b"\n", r"variants.txt is empty"),
        ("images_variant_test.txt", b"5 707-320\n", r"^1 image of 13 .* is missing.*5.jpg"),
    ],
)
def test_a_damaged_list_of_aircraft_is_named(file, content, message, tmp_path, miniature):
    (miniature.aircraft(tmp_path) / file).write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_dataset("fgvc_aircraft", tmp_path)


def test_folders_that_are_not_imagenet(tmp_path, miniature):
    miniature.imagenet(tmp_path, ["n1", "n2"])
    with pytest.raises(DataError, match="has 2 class folders, which is not ImageNet's 1000"):
        load_dataset("imagenet", tmp_path)
    table = tmp_path / "imagenet/classnames.txt"
    table.write_text("n1 tench\n")
    with pytest.raises(DataError, match=r"classnames.txt lacks the class folders 'n2'"):
        load_dataset("imagenet", tmp_path)
    table.write_text("n1 tench\nn1 goldfish\n")
    with pytest.raises(DataError, match=r"Line 2 of .*classnames.txt must be another class"):
        load_dataset("imagenet", tmp_path)
    table.write_text("n1 tench\nn2 goldfish\n")
    miniature.image(tmp_path / "imagenet/images/val/n3/a.JPEG")
    with pytest.raises(DataError, match=r"val has the class folder 'n3'"):
        load_dataset("imagenet", tmp_path)
    miniature.image(tmp_path / "imagenetv2/imagenetv2-matched-frequency-format-val/1000/a.jpeg")
    with pytest.raises(DataError, match="numbered from 0 to 999"):
        load_dataset("imagenetv2", tmp_path)
    (tmp_path / "imagenet-sketch/images").mkdir(parents=True)
    with pytest.raises(DataError, match=r"images must hold a folder of images for each class"):
        load_dataset("imagenet_sketch", tmp_path)


def test_a_flat_folder_of_validation_images(tmp_path, miniature):
    miniature.imagenet(tmp_path, ["n1"], test=0)
    (tmp_path / "imagenet/classnames.txt").write_text("n1 tench\n")
    miniature.image(tmp_path / "imagenet/images/val/ILSVRC2012_val_00000001.JPEG")
    with pytest.raises(DataError, match=r"val must hold a folder of images for each class"):
        load_dataset("imagenet", tmp_path)


@pytest.mark.parametrize("name", SEVEN)
def test_a_whole_copy_is_found(name, tmp_path, miniature, shared):
    """The real split file, with an empty file for every image: loading opens none."""
    folder, images, split, *_ = miniature.known[name]
    place = tmp_path / folder
    place.mkdir()
    content = json.loads((shared / "splits" / f"split_zhou_{split}.json").read_text())
    (place / f"split_zhou_{split}.json").symlink_to(shared / "splits" / f"split_zhou_{split}.json")
    paths = [Path(images) / path for rows in content.values() for path, _, _ in rows]
    for parent in {path.parent for path in paths}:
        (place / parent).mkdir(parents=True, exist_ok=True)
    for path in paths:
        (place / path).touch()
    dataset = load_dataset(name, tmp_path)
    assert miniature.counts(dataset) == catalogue()[name].known
    assert len(dataset.prompts.sentences) == len(set(dataset.class_names))
    assert not any("_" in class_name for class_name in dataset.class_names)
    assert set(dataset.test.labels) == set(range(len(dataset.class_names)))
    states = {status.entry.name: status.state for status in check_datasets(tmp_path)}
    assert states.pop(name) == "found"
    assert set(states.values()) == {"missing"}
