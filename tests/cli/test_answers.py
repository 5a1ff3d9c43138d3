"""Answers are streamed: a million of them need no more memory than a few."""

import tracemalloc

import numpy as np
import pytest

import gpcache.model.answer_tables
from gpcache.cli.answers import Shape, write_answers
from gpcache.model.predictions import Prediction

CLASSES = np.array(["cat", "dog"])


def answers(count):
    for number in range(count):
        distribution = np.array([0.25, 0.75])
        yield Prediction(f"{number:0100}.jpg", CLASSES, distribution, 0.5, 0.5, False)


def peak(write, count):
    tracemalloc.start()
    try:
        write(answers(count))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("form", ["table", "csv", "jsonl", "parquet"])
def test_memory_does_not_grow_with_the_answers(tmp_path, monkeypatch, form):
    monkeypatch.setattr(gpcache.model.answer_tables, "ROWS", 400)
    target = tmp_path / "answers"

    def write(stream):
        if form == "parquet":
            pytest.importorskip("pyarrow")
        write_answers(stream, form, target, Shape(2))

    write(answers(1))  # what is imported or cached on first use is no part of it
    assert peak(write, 4_000) < 1.5 * peak(write, 1_000) + 50_000
    assert target.stat().st_size > 0


def test_a_failure_in_the_middle_leaves_the_old_file(tmp_path):
    target = tmp_path / "answers.csv"
    target.write_text("old")

    def failing():
        yield from answers(10)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_answers(failing(), "csv", target, Shape())
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]
