"""Data sets by name, their state on disk, their hashes, and class folders of one's own."""

import numpy as np
import pytest

from gpcache.benchmark.datasets.catalogue import catalogue
from gpcache.benchmark.datasets.class_folders import load_class_folders
from gpcache.benchmark.datasets.loading import check_datasets, load_dataset
from gpcache.benchmark.task import spare_rows
from gpcache.errors import DataError
from gpcache.features.splits import draw_shots


def test_the_hash_is_of_splits_and_names(tmp_path, miniature):
    places = [tmp_path / place for place in "abc"]
    for place in places:
        content = miniature.write(place, "dtd")
    content["train"][0], content["train"][1] = content["train"][1], content["train"][0]
    miniature.split(places[2], "dtd", content)
    first, same, other = (load_dataset("dtd", place).split_hash for place in places)
    assert first == same != other
    renamed = {
        part: [[path, label, f"{name}s"] for path, label, name in rows]
        for part, rows in miniature.write(places[1], "dtd").items()
    }
    miniature.split(places[1], "dtd", renamed)
    assert load_dataset("dtd", places[1]).split_hash != first


def test_a_data_set_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match=r"DTD is missing: .*dtd/split_zhou_.*https://www.robots"):
        load_dataset("dtd", tmp_path)
    with pytest.raises(DataError, match="no data set 'mnist': use imagenet, caltech101"):
        load_dataset("mnist", tmp_path)
    with pytest.raises(DataError, match="There is no folder"):
        check_datasets(tmp_path / "none")


def test_the_state_of_every_data_set(tmp_path, miniature):
    content = miniature.write(tmp_path, "dtd")
    (tmp_path / "dtd/images" / content["train"][0][0]).unlink()
    miniature.write(tmp_path, "eurosat")
    (tmp_path / "food-101/images").mkdir(parents=True)
    states = {status.entry.name: status for status in check_datasets(tmp_path)}
    assert list(states) == list(catalogue())
    found = {name: status.state for name, status in states.items() if status.state != "missing"}
    assert found == {"dtd": "incomplete", "eurosat": "different", "food101": "incomplete"}
    assert "1 image of 12" in states["dtd"].problem
    assert (states["dtd"].counts, states["dtd"].absent) == (None, ())
    assert states["eurosat"].counts == (2, 6, 2, 4)
    assert states["eurosat"].entry.known == (10, 13_500, 5400, 8100)
    assert "2 classes instead of 10, 6 train instead of 13,500" in states["eurosat"].problem
    assert states["food101"].absent == (tmp_path / "food-101/split_zhou_Food101.json",)
    cars = states["stanford_cars"]
    assert cars.expected == cars.absent
    assert [path.name for path in cars.expected[:2]] == ["cars_train", "cars_test"]


def test_every_entry_says_what_is_expected_and_who_publishes_it():
    known = catalogue()
    assert len(known) == 13
    for entry in known.values():
        assert "https://" in entry.published
        assert all(path.startswith(f"{entry.folder}/") for path in entry.expected)
        assert all(template.count("{}") == 1 for template in entry.templates)
        assert entry.known.classes > 0
        assert entry.known.test > 0
    assert known["imagenet"].expected == ("imagenet/images/train", "imagenet/images/val")


def test_rows_to_choose_on_are_no_shots():
    labels = [name for name in ("tench", "goldfish") for _ in range(20)] + ["rare"] * 5
    names = [f"{row}.JPEG" for row in range(45)]
    draw = draw_shots(labels, names, 4, 1)
    chosen = spare_rows(labels, names, draw)
    assert not set(chosen) & set(draw.indices)
    assert [labels[row] for row in chosen].count("tench") == 4
    assert [labels[row] for row in chosen].count("rare") == 1
    assert len(chosen) == 9
    assert set(spare_rows(labels, names, draw, per_class=2)) < set(chosen)


def test_class_folders_in_parts(tmp_path, miniature):
    for part, number in (("train", 3), ("test", 2)):
        for name in ("red_fox", "hen"):
            for image in range(number):
                miniature.image(tmp_path / "farm" / part / name / f"{image}.jpg")
    miniature.image(tmp_path / "farm/test/owl/0.jpg")
    dataset = load_class_folders(tmp_path / "farm")
    assert (dataset.name, dataset.class_names) == ("farm", ("hen", "owl", "red fox"))
    assert miniature.counts(dataset) == (3, 6, 0, 5)
    assert dataset.test.paths[2] == "test/owl/0.jpg"
    assert dataset.train.labels.tolist() == [0, 0, 0, 2, 2, 2]
    assert all((dataset.root / path).is_file() for path in dataset.train.paths)


def test_class_folders_without_parts_are_divided(tmp_path, miniature):
    sizes = {"fox": 10, "hen": 20, "owl": 2}
    for name, size in sizes.items():
        for image in range(size):
            miniature.image(tmp_path / "farm" / name / f"{image}.jpg")
    dataset = load_class_folders(tmp_path / "farm")
    per_class = [
        np.bincount(split.labels, minlength=3).tolist()
        for split in (dataset.train, dataset.validation, dataset.test)
    ]
    assert per_class == [[5, 10, 1], [2, 4, 0], [3, 6, 1]]
    parts = (dataset.train.paths, dataset.validation.paths, dataset.test.paths)
    assert len({path for part in parts for path in part}) == 32
    assert load_class_folders(tmp_path / "farm").split_hash == dataset.split_hash
    # Another class changes nothing for those that are there.
    miniature.image(tmp_path / "farm/yak/0.jpg")
    miniature.image(tmp_path / "farm/yak/1.jpg")
    assert set(dataset.train.paths) < set(load_class_folders(tmp_path / "farm").train.paths)


def test_class_folders_that_cannot_be_used(tmp_path, miniature):
    miniature.image(tmp_path / "farm/hen/0.jpg")
    with pytest.raises(DataError, match=r"class 'hen' in .*farm has one image"):
        load_class_folders(tmp_path / "farm")
    (tmp_path / "farm/hen/1.jpg").symlink_to(tmp_path / "nowhere.jpg")
    with pytest.raises(DataError, match=r"hen/1.jpg cannot be read: it is a broken link"):
        load_class_folders(tmp_path / "farm")
    miniature.image(tmp_path / "flat/0.jpg")
    with pytest.raises(DataError, match="must hold a folder of images for each class"):
        load_class_folders(tmp_path / "flat")
    with pytest.raises(DataError, match="none cannot be read: No such file"):
        load_class_folders(tmp_path / "none")
