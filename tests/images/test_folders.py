"""Folders of images: classes, junk, odd names and links."""

import os
from pathlib import Path

import pytest

from gpcache.images import decode
from gpcache.images.folders import from_folder
from gpcache.images.sources import open_source

CAFE, CAFE_DECOMPOSED = "caf\u00e9", "cafe\u0301"


def test_class_folders(tree, tools):
    root = tree("dog/b.jpg", "cat/deep/er/z.jpg", "cat/a.png", "cat/unknown.xyz")
    source = open_source(root)
    assert tools.names(source) == ["cat/a.png", "cat/deep/er/z.jpg", "cat/unknown.xyz", "dog/b.jpg"]
    assert [record.label for record in source.records] == ["cat", "cat", "cat", "dog"]
    assert (source.total, source.classes, source.refused, source.notices) == (
        4,
        ["cat", "dog"],
        [],
        [],
    )
    assert decode(source.records[0].content).image.size == (90, 60)


def test_a_flat_folder_is_unlabelled(tree, tools):
    source = from_folder(tree("b.png", "a.png", ".hidden", "notes.txt"))
    assert tools.names(source) == ["a.png", "b.png"]
    assert {record.label for record in source.records} == {None}
    assert source.classes == []


def test_junk_is_counted_in_one_notice(tree, tools):
    root = tree(
        "cat/a.png",
        "cat/.DS_Store",
        "cat/Thumbs.db",
        "cat/desktop.ini",
        "cat/labels.CSV",
        "__MACOSX/cat/._a.png",
        ".git/x.png",
        "readme.md",
    )
    source = from_folder(root)
    assert tools.names(source) == ["cat/a.png"]
    assert source.refused == []
    (notice,) = source.notices
    assert "7 files" in notice


def test_a_class_folder_may_have_any_name(tree):
    odd = ["😀", "שלום", "<script>alert(1)", "x" * 200, "...x", "a.txt", "-rf", "%2e%2e", "cat "]
    source = from_folder(tree(*[f"{name}/a.png" for name in odd if not name.startswith(".")]))
    expected = sorted(name.strip() for name in odd if not name.startswith("."))
    assert source.classes == expected
    assert all(decode(record.content).notes == () for record in source.records)


def test_a_name_that_is_no_utf8_becomes_text(tree, tools):
    root = tree("cat/a.png")
    os.rename(root / "cat" / "a.png", os.fsencode(root) + b"/cat/caf\xe9.png")
    source = from_folder(root)
    assert tools.names(source) == [r"cat/caf\xe9.png"]
    assert decode(source.records[0].content).image.size == (90, 60)


def test_two_spellings_of_one_name_are_merged(tree):
    source = from_folder(tree(f"{CAFE}/a.png", f"{CAFE_DECOMPOSED}/b.png"))
    if source.total != 2 or len(list(Path(source.name).iterdir())) != 2:
        pytest.skip("this file system merges the names itself")
    assert source.classes == [CAFE]
    assert {record.label for record in source.records} == {CAFE}
    assert any("merged" in notice for notice in source.notices)


def test_names_that_differ_in_case_are_an_error(tree, tools):
    root = tree("Cat/a.png", "cat/b.png")
    if len(list(root.iterdir())) == 1:
        pytest.skip("this file system does not tell them apart")
    tools.one_sentence(lambda: from_folder(root), "'Cat'", "'cat'")


def test_an_empty_class_is_kept_and_noted(tree):
    root = tree("cat/a.png", "dog/readme.txt")
    (root / "emu").mkdir()
    source = from_folder(root)
    assert source.classes == ["cat", "dog", "emu"]
    assert any("'dog', 'emu'" in notice for notice in source.notices)


def test_no_image_at_all(tree, tmp_path, tools):
    tools.one_sentence(lambda: from_folder(tree("cat/readme.txt")), "no image")
    empty = tmp_path / "empty"
    empty.mkdir()
    tools.one_sentence(lambda: open_source(empty), "no image")
    tools.one_sentence(lambda: from_folder(tmp_path / "absent"), "no folder", "absent")
    tools.one_sentence(lambda: open_source(tmp_path / "absent"), "no file or folder", "absent")


def test_images_outside_of_the_classes_are_named(tree, tools):
    tools.one_sentence(
        lambda: from_folder(tree("cat/a.png", "lost.png")), "'lost.png'", "class folder"
    )


# Links.


def test_links_that_leave_the_folder_are_refused(tree, tmp_path, photo, tools):
    outside = tmp_path / "outside"
    outside.mkdir()
    photo.save(outside / "x.png")
    root = tree("cat/a.png")
    (root / "cat" / "file.png").symlink_to(outside / "x.png")
    (root / "cat" / "folder").symlink_to(outside)
    (root / "dog").symlink_to(outside)
    (root / "cat" / "broken.png").symlink_to("nowhere.png")
    source = from_folder(root)
    assert tools.names(source) == ["cat/a.png"]
    assert source.classes == ["cat"]
    reasons = tools.refusals(source)
    assert "broken link" in reasons.pop("cat/broken.png")
    assert set(reasons) == {"cat/file.png", "cat/folder", "dog"}
    assert all("leaves the folder" in reason for reason in reasons.values())
    assert all("--follow" in reason and "follow=True" in reason for reason in reasons.values())
    followed = from_folder(root, follow=True)
    assert tools.names(followed) == ["cat/a.png", "cat/file.png", "dog/x.png"]
    assert set(tools.refusals(followed)) == {
        "cat/broken.png",
        "cat/folder",
    }  # that folder was read already


def test_links_inside_the_folder_are_read(tree, tools):
    root = tree("cat/a.png")
    (root / "cat" / "again.png").symlink_to("a.png")
    (root / "linked").symlink_to(root / "cat")
    assert tools.names(from_folder(root)) == [
        "cat/a.png",
        "cat/again.png",
        "linked/a.png",
        "linked/again.png",
    ]


@pytest.mark.parametrize("follow", [False, True])
def test_circles_end(tree, follow, tools):
    folders = [f"class{number}" for number in range(9)]
    root = tree(*[f"{folder}/a.png" for folder in folders])
    for folder in folders:
        (root / folder / "up").symlink_to("..")
        (root / folder / "self").symlink_to("self")
        for other in folders:
            (root / folder / f"to_{other}").symlink_to(root / other)
    source = from_folder(root, follow=follow)
    assert {f"{folder}/a.png" for folder in folders} <= set(tools.names(source))
    assert source.total <= len(folders) ** 2
    assert all(f"{folder}/up" in tools.refusals(source) for folder in folders)


DATA = Path(os.environ.get("GPCACHE_DEV_DATA", Path(__file__).resolve().parents[3] / "shared"))
PHOTOS = DATA / "images" / "caltech20"


@pytest.mark.skipif(
    not PHOTOS.exists(), reason=f"{PHOTOS} is absent: set GPCACHE_DEV_DATA to the development data"
)
def test_real_photos():
    source = open_source(PHOTOS / "train")
    assert (source.total, len(source.classes), source.refused) == (400, 20, [])
    assert all(decode(record.content).notes == () for record in source.records[::40])
    flat = open_source(DATA / "images" / "unlabelled")
    assert (flat.total, flat.classes) == (1000, [])
