"""Results: rows survive what kills a run, and what counts is the last word on a cell."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpcache.benchmark.rows import (
    RowFile,
    correct_rows,
    done_rows,
    key_of,
    latest,
    packed,
    read_rows,
)
from gpcache.errors import DataError

PLACE = {"protocol": "p", "encoder": "e", "dataset": "d", "test": "d", "shots": 1, "seed": 0}


def row(key, label="a", status="done", **more):
    return {"key": key, "label": label, "status": status, **PLACE, **more}


def test_rows_come_back_in_order(tmp_path):
    results = RowFile(tmp_path, "x")
    with results.writing():
        for number in range(3):
            results.append(row(str(number), label=str(number)))
    assert [found["key"] for found in read_rows(tmp_path / "x.jsonl")] == ["0", "1", "2"]


@pytest.mark.parametrize("kept", [0, 1, 20])
def test_a_torn_last_line_is_dropped_with_a_notice(tmp_path, kept):
    results = RowFile(tmp_path, "x")
    with results.writing():
        results.append(row("1"))
    whole = results.path.read_bytes()
    line = json.dumps(row("2", label="é")).encode()
    results.path.write_bytes(whole + line[: len(line) - kept or None])
    assert [found["key"] for found in read_rows(results.path)] == ["1"]
    again = RowFile(tmp_path, "x")
    with again.writing():
        assert again.known("1")
        assert again.known("2") is None
        again.append(row("3", label="c"))
    assert len(again.notices) == 1
    assert "was torn" in again.notices[0]
    assert [found["key"] for found in read_rows(results.path)] == ["1", "3"]


def test_a_damaged_line_in_the_middle_is_an_error_that_names_it(tmp_path):
    (tmp_path / "x.jsonl").write_text(json.dumps(row("1")) + "\n{}\n" + json.dumps(row("2")) + "\n")
    with pytest.raises(DataError, match=r"Line 2 of .*x\.jsonl"):
        read_rows(tmp_path / "x.jsonl")


def test_the_same_word_is_written_once_and_another_again(tmp_path):
    results = RowFile(tmp_path, "x")
    with results.writing():
        results.append(row("1", status="failed", why="no"))
        results.append(row("1", status="failed", why="no"))
        results.append(row("2"))
        results.append(row("3"))
        results.append(row("2"))  # the cell went back to its earlier options
    rows = read_rows(results.path)
    assert [(one["key"], one["status"]) for one in rows] == [
        ("1", "failed"),
        ("2", "done"),
        ("3", "done"),
        ("2", "done"),
    ]
    assert latest(rows) == [row("2")]


def test_failures_are_not_known(tmp_path):
    results = RowFile(tmp_path, "x")
    with results.writing():
        results.append(row("1", status="failed", why="no"))
        results.append(row("2", label="b"))
        assert results.known("1") is None
    assert set(done_rows(tmp_path)) == {"2"}


def test_two_runs_do_not_write_one_file(tmp_path):
    with (
        RowFile(tmp_path, "x").writing(),
        pytest.raises(DataError, match="Another run is writing"),
        RowFile(tmp_path, "x").writing(),
    ):
        pass
    with RowFile(tmp_path, "x").writing():
        pass


@given(st.lists(st.booleans(), min_size=1))
def test_right_answers_survive_packing(answers):
    correct = np.array(answers)
    found = correct_rows({"correct": packed(correct), "n_test": len(correct)})
    assert found.tolist() == answers


def test_a_key_depends_on_values_and_not_on_their_order():
    assert key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1}) != key_of({"a": 1, "b": 3})
