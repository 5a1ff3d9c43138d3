"""Manifests: tables of paths, read row by row, and what is said of rows that cannot be used."""

import pytest

from gpcache.images.sources import open_source

CAFE, CAFE_DECOMPOSED = "caf\u00e9", "cafe\u0301"


@pytest.fixture
def table(tree):
    """Write a manifest beside a.png, b.png and sub/c.png, and open it."""

    def opened(text, name="table.csv", **options):
        root = tree("a.png", "b.png", "sub/c.png")
        content = text if isinstance(text, bytes) else text.encode()
        (root / name).write_bytes(content)
        return open_source(root / name, **options)

    return opened


def test_a_table_with_everything(table):
    source = table(
        "\ufeffpath,label,split,group\nsub/c.png,dog,test,g1\n./a.png,cat,train,\nb.png,,,\n"
    )
    assert [(r.name, r.label, r.split, r.group) for r in source.records] == [
        ("a.png", "cat", "train", None),
        ("b.png", None, None, None),
        ("sub/c.png", "dog", "test", "g1"),
    ]
    assert (source.total, source.classes, source.refused, source.notices) == (
        3,
        ["cat", "dog"],
        [],
        [],
    )


def test_tabs_and_other_columns(table):
    source = table("Path\tauthor\tlabel\na.png\tme\tcat, wild\n", "table.tsv")
    assert [(r.name, r.label) for r in source.records] == [("a.png", "cat, wild")]
    assert any("'author'" in notice for notice in source.notices)


def test_parquet_equals_csv(table, tree, tools):
    pyarrow = pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    from pyarrow import parquet

    root = tree("a.png", "b.png")
    columns = {"path": ["b.png", "a.png", "no.png"], "more": [1, 2, 3], "label": ["x", None, "y"]}
    parquet.write_table(pyarrow.table(columns), root / "table.parquet")
    source = open_source(root / "table.parquet")
    same = table("path,more,label\nb.png,1,x\na.png,2,\nno.png,3,y\n")
    assert source.records == same.records
    assert source.notices == same.notices
    assert tools.refusals(source) == {"no.png": "there is no such file (row 3)"}
    (root / "broken.parquet").write_bytes(b"PAR1 no")
    tools.one_sentence(lambda: open_source(root / "broken.parquet"), "broken.parquet")
    parquet.write_table(pyarrow.table({"file": ["a.png"]}), root / "other.parquet")
    tools.one_sentence(lambda: open_source(root / "other.parquet"), "'path'", "'file'")


def test_labels_are_normalised(table, tools):
    source = table(f"path,label\na.png,{CAFE}\nb.png,{CAFE_DECOMPOSED}\n")
    assert source.classes == [CAFE]
    assert any("merged" in notice for notice in source.notices)
    odd = table("path,label\na.png,..\nb.png,<script>\nsub/c.png," + "x" * 200 + "\n")
    assert odd.classes == ["..", "<script>", "x" * 200]
    tools.one_sentence(lambda: table("path,label\na.png,Cat\nb.png,cat\n"), "'Cat'", "'cat'")


def test_rows_that_cannot_be_read_are_refused_by_number(table, tmp_path, photo, tools):
    photo.save(tmp_path / "outside.png")
    text = (
        "path\na.png\nno.png\n../outside.png\n/etc/passwd\nsub\n\n"
        f'"nul\0l.png"\n""\n{tmp_path}/root/b.png\n{"x" * 5000}\n'
    )
    source = table(text)
    assert tools.names(source) == ["a.png", "b.png"]
    reasons = tools.refusals(source)
    assert "no such file (row 3)" in reasons["no.png"]
    assert "leaves the folder" in reasons[f"{tmp_path}/outside.png"]
    assert "(row 4)" in reasons[f"{tmp_path}/outside.png"]
    assert "leaves the folder" in reasons["/etc/passwd"]
    assert "--follow" in reasons["/etc/passwd"]
    assert "follow=True" in reasons["/etc/passwd"]
    assert "folder" in reasons["sub"]
    assert "empty (row 9)" in reasons[""]
    assert len(reasons) == 7
    followed = table("path\n../outside.png\n", follow=True)
    assert tools.names(followed) == [f"{tmp_path}/outside.png"]


def test_a_link_out_of_the_folder_is_refused(table, tree, tmp_path, photo, tools):
    photo.save(tmp_path / "outside.png")
    (tree() / "link.png").symlink_to(tmp_path / "outside.png")
    source = table("path\na.png\nlink.png\n")
    assert "leaves the folder" in tools.refusals(source)["link.png"]
    assert tools.names(table("path\nlink.png\n", follow=True)) == ["link.png"]


def test_repeated_rows(table, tools):
    source = table("path,label\na.png,cat\n./a.png,cat\nsub/../a.png,cat\n")
    assert tools.names(source) == ["a.png"]
    assert any("2 rows" in notice for notice in source.notices)
    tools.one_sentence(
        lambda: table("path,label\na.png,cat\nb.png,cat\na.png,dog\n"),
        "'a.png'",
        "'cat' in row 2",
        "'dog' in row 4",
    )
    tools.one_sentence(lambda: table("path,split\na.png,train\na.png,test\n"), "different splits")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["'path'", "empty"]),
        ("file,label\na.png,cat\n", ["'path'", "'file', 'label'"]),
        ("path,path\na.png,b.png\n", ["'path'", "more than once"]),
        ("path,label\na.png\n", ["Row 2", "1 cell"]),
        ("path,label\na.png,b,c\n", ["Row 2", "3 cells"]),
        ("path\n", ["no rows"]),
        ("path\nno.png\n", ["no such file (row 2)"]),
        (b"path\n\xff\xfe.png\n", ["UTF-8"]),
        ('path\n"a.png"x\n', ["Row 2", "broken"]),
        ("path\n" + "x" * 200_000 + "\n", ["Row 2", "broken"]),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_broken_tables_are_one_sentence(text, parts, table, tools):
    tools.one_sentence(lambda: table(text), "table.csv", *parts)
