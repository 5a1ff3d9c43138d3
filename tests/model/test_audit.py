"""What an audit finds: planted faults, and closed forms beside literal refits."""

import io
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from gpcache import DataError, TextPrior
from gpcache.model.audit import KINDS, audit_model, copies, verdicts
from gpcache.model.audit import audit as audit_examples
from gpcache.model.audit.audit_model import AuditModel, fit_label_noise
from gpcache.model.audit.fingerprints import fingerprint
from gpcache.model.training_images import Example

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("GPCACHE_DEV_DATA", ROOT.parent / "shared"))
FILE = DATA / "features" / "caltech101_vitb32.npz"
NAMES = np.array(["ash", "elm", "fir", "oak"])


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def make(per_class=8, classes=4, width=10, spread=0.35, seed=0):
    """Rows in a common cone and their true labels, class after class."""
    generator = np.random.default_rng(seed)
    centres = 1 + generator.normal(size=(classes, width))
    labels = np.repeat(np.arange(classes), per_class)
    rows = centres[labels] + spread * generator.normal(size=(len(labels), width))
    return unit(rows), NAMES[labels]


def audit(features, labels, *, hashes=None, groups=None, names=None, **options):
    """An audit of rows with these labels; rows without a hash are different images."""
    n = len(labels)
    columns = zip(
        names or [f"Row {row}" for row in range(n)],
        labels,
        [f"row {row}" if key is None else key for row, key in enumerate(hashes or [None] * n)],
        groups or [None] * n,
        strict=True,
    )
    examples = [None if one[1] is None else Example(*one) for one in columns]
    return audit_examples(features, examples, **options)


def model_of(features, labels, sets=None, prior=None):
    rows = torch.as_tensor(features)
    sets = torch.arange(len(rows)) if sets is None else torch.as_tensor(sets)
    return AuditModel.of(rows, labels, sets, prior)


def text_for(features, labels):
    means = [features[labels == name].mean(0) for name in NAMES]
    return TextPrior(list(NAMES), np.array(means), logit_scale=5.0)


class Refit:
    """The model's model in numpy, fitted literally on whichever rows are kept."""

    def __init__(self, model):
        precision = model.precision
        self.keys, self.values = precision.keys.numpy(), precision.values.numpy()
        self.beta, self.noise = precision.beta, precision.noise
        self.scale, self.labels = model.scale, model.labels.numpy()
        self.sets, self.counted = model.sets.numpy(), model.counted.numpy()

    def kernel(self, first, second):
        return np.exp(-self.beta * (1 - first @ second.T))

    def mean(self, row, kept):
        keys = self.keys[kept]
        covariance = self.kernel(keys, keys) + self.noise * np.eye(len(keys))
        cross = self.kernel(self.keys[row : row + 1], keys)
        weights = cross @ np.linalg.inv(covariance)
        return (weights @ self.values[kept])[0], 1 - float((weights @ cross.T)[0, 0])

    def without(self, row, *removed):
        kept = self.sets != self.sets[row]
        kept[list(removed)] = False
        return self.mean(row, kept)


def loss(model, logits, label):
    """Minus the log-probability of a label that is wrong at the rate of the model."""
    right = np.exp(logits[label]) / np.exp(logits).sum()
    return -np.log((1 - model.rate) * right + model.rate * (1 - right) / (len(logits) - 1))


# The closed forms.

BURSTS = np.arange(32) // 3  # bursts of three, some across two classes


@pytest.mark.parametrize("sets", [np.arange(32), BURSTS], ids=["rows", "bursts"])
@pytest.mark.parametrize("with_text", [False, True])
def test_every_row_is_judged_by_a_model_that_has_not_seen_its_set(sets, with_text):
    features, labels = make()
    prior = text_for(features, labels) if with_text else None
    model = model_of(features, labels, sets, prior)
    refit = Refit(model)
    # What the text says is the same in all models: compare the part that the shots say.
    text = model.logits.numpy() - model.scale * model.precision.leave_out(model.sets).mean.numpy()
    for row in range(len(labels)):
        mean, variance = refit.without(row)
        np.testing.assert_allclose(model.logits[row], text[row] + model.scale * mean, atol=1e-9)
        np.testing.assert_allclose(model.variance[row], variance, atol=1e-9)
    if with_text:
        zero_shot = 5.0 * features @ unit(prior.vectors).T
        spans = text / zero_shot
        np.testing.assert_allclose(spans, spans[0, 0], rtol=1e-6)
    else:
        np.testing.assert_allclose(text, 0, atol=1e-9)


@pytest.mark.parametrize("sets", [np.arange(32), BURSTS], ids=["rows", "bursts"])
@pytest.mark.parametrize("with_text", [False, True])
def test_the_gain_of_a_removal_is_that_of_refits_without_the_row(sets, with_text):
    features, labels = make(spread=0.6)
    labels[[3, 20]] = labels[[20, 3]]
    model = model_of(features, labels, sets, text_for(features, labels) if with_text else None)
    refit = Refit(model)
    gains = model.removal_gains(torch.arange(len(labels))).numpy()
    for removed in range(len(labels)):
        expected = 0.0
        for row in np.flatnonzero(refit.counted):
            if refit.sets[row] == refit.sets[removed]:
                continue  # left out together: nothing changes
            before, label = model.logits[row].numpy(), refit.labels[row]
            change = refit.without(row, removed)[0] - refit.without(row)[0]
            after = before + refit.scale * change
            expected += loss(model, before, label) - loss(model, after, label)
        assert gains[removed] == pytest.approx(expected, abs=1e-8)


def test_removals_in_small_batches_give_the_same(monkeypatch):
    features, labels = make(spread=0.6)
    model = model_of(features, labels, BURSTS)
    rows = torch.arange(32)
    whole = model.removal_gains(rows)
    monkeypatch.setattr(audit_model, "BATCH_ELEMENTS", 1)
    torch.testing.assert_close(model.removal_gains(rows), whole)


# Planted faults.


def test_a_wrong_label_is_found_with_the_right_one():
    features, labels = make()
    wrong = labels.copy()
    wrong[[2, 17]] = "elm", "ash"
    found = audit(features, wrong).of("label")
    assert {finding.row: finding.suggestion for finding in found} == {2: "ash", 17: "fir"}
    for finding in found:
        assert 0.5 < finding.score <= 1
        assert repr(str(finding.suggestion)) in finding.sentence
    assert not audit(features, labels).of("label")


def test_a_copy_does_not_vouch_for_a_wrong_label():
    features, labels = make()
    rows = [*range(32), 5, 5, 5]
    wrong = [*labels, "oak", "oak", "oak"]
    wrong[5] = "oak"
    found = {
        finding.row: finding.suggestion for finding in audit(features[rows], wrong).of("label")
    }
    assert found == dict.fromkeys((5, 32, 33, 34), "ash")


def test_a_burst_of_wrong_labels_is_found_only_where_the_burst_is_known():
    features, labels = make(per_class=10)
    burst = [0, 1, 2, 3]
    # One scene: alike, yet no copies.
    generator = np.random.default_rng(1)
    features[burst] = unit(features[0] + 0.06 * generator.normal(size=(4, 10)))
    labels = labels.copy()
    labels[burst] = "oak"
    groups = ["burst" if row in burst else None for row in range(40)]
    blind, informed = audit(features, labels), audit(features, labels, groups=groups)
    assert not {finding.row for finding in blind.of("label")} >= set(burst)
    assert {finding.row for finding in informed.of("label")} == set(burst)


def test_a_harmful_shot_is_one_with_a_wrong_label():
    features, labels = make(per_class=4, spread=0.5, seed=1)
    labels = labels.copy()
    labels[1] = "oak"
    gains = model_of(features, labels).removal_gains(torch.arange(16))
    assert int(gains.argmax()) == 1
    (finding,) = audit(features, labels).of("harmful")
    assert (finding.row, finding.score) == (1, pytest.approx(float(gains[1])))


def test_an_image_like_nothing_else_is_an_outlier():
    features, labels = make(per_class=12, spread=0.15)
    strange = np.append(features, [[9, -9, 9, -9, 9, -9, 9, -9, 9, -9]], axis=0)
    found = audit(strange, [*labels, "ash"]).of("outlier")
    assert found
    assert found[0].row == 48
    assert 48 not in {finding.row for finding in audit(features, labels).of("outlier")}


def test_copies_are_told_apart_by_what_is_wrong_with_them():
    features, labels = make(classes=3, width=40)
    close = unit(features[[4]] + 0.01 * np.eye(40)[:1])
    rows = np.concatenate([features, features[[0, 1, 2]], close])
    labels = [*labels, "ash", "oak", "ash", "ash"]
    hashes = [f"{row}" for row in range(24)] + ["0", "1", "2", None]
    groups = ["a"] * 24 + ["a", "a", "b", "a"]
    result = audit(rows, labels, hashes=hashes, groups=groups)
    found = {(f.kind, f.row, f.other) for f in result.findings if f.other is not None}
    assert found == {
        ("duplicate", 24, 0),
        ("leak", 25, 1),
        ("leak", 26, 2),
        ("near-duplicate", 27, 4),
    }
    sentences = {finding.row: finding.sentence for finding in result.findings}
    assert "'oak'" in sentences[25]
    assert "'b'" in sentences[26]


def test_findings_come_by_kind_and_the_gravest_first():
    features, labels = make()
    wrong = labels.copy()
    wrong[[2, 9, 17]] = "elm", "oak", "ash"
    rows = [*range(32), 4]
    result = audit(features[rows], [*wrong, "fir"])
    keys = [(KINDS.index(finding.kind), -finding.score) for finding in result.findings]
    assert keys == sorted(keys)
    assert len({finding.kind for finding in result.findings}) > 1


def test_the_order_of_the_rows_means_nothing():
    features, labels = make(spread=0.8)
    order = np.random.default_rng(2).permutation(32)
    plain, shuffled = (audit(features[o], labels[o]) for o in (np.arange(32), order))
    expected = {finding.row: finding.score for finding in plain.of("look")}
    assert expected
    found = {int(order[finding.row]): finding.score for finding in shuffled.of("look")}
    assert found == pytest.approx(expected)


def test_names_are_what_the_sentences_say():
    features, labels = make()
    names = [f"photo{row}.jpg" for row in range(33)]
    result = audit(features[[*range(32), 4]], [*labels, "ash"], names=names)
    assert result.of("near-duplicate")[0].sentence.startswith("photo32.jpg is nearly")


def test_one_content_in_many_files_is_compared_and_judged_once(monkeypatch):
    """10,000 files of 12 contents: what is quadratic sees 12 rows, and every file is named."""
    compared, checked = [], []
    search, of = copies.nearest, AuditModel.of.__func__
    monkeypatch.setattr(
        copies, "nearest", lambda rows, **kw: (compared.append(len(rows)), search(rows, **kw))[1]
    )
    monkeypatch.setattr(
        AuditModel,
        "of",
        classmethod(lambda c, rows, *a: (checked.append(len(rows)), of(c, rows, *a))[1]),
    )
    features, labels = make(per_class=3)
    rows = np.arange(10_000) % 12
    found = audit(features[rows], labels[rows], hashes=rows.tolist())
    assert (compared, checked) == ([12], [12])
    assert len(found.of("duplicate")) == 10_000 - 12


def scene(seed, side=160):
    """A picture of smooth shapes, none like another."""
    small = np.random.default_rng(seed).integers(0, 256, (7, 7, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((side, side), Image.Resampling.BICUBIC)


def smaller(picture):
    return picture.resize((112, 112), Image.Resampling.LANCZOS)


def cropped(picture):
    return picture.crop((6, 6, 154, 154)).resize((160, 160), Image.Resampling.BICUBIC)


def saved_again(picture):
    stream = io.BytesIO()
    picture.save(stream, "JPEG", quality=60)
    return Image.open(stream)


@pytest.mark.parametrize("change", [smaller, cropped, ImageOps.mirror, saved_again])
def test_a_changed_copy_is_found_by_its_picture(change):
    """Its features alone are as far from the original's as those of another photo may be."""
    features, labels = make(per_class=6, width=60, spread=0.6)
    near = unit(features[[4]] + 0.05 * np.random.default_rng(5).normal(size=(1, 60)))
    rows = np.concatenate([features, near])
    pictures = [fingerprint(np.asarray(scene(seed))) for seed in range(24)]
    pictures.append(fingerprint(np.asarray(change(scene(4)))))
    assert not audit(rows, [*labels, "ash"]).of("near-duplicate")
    (found,) = audit(rows, [*labels, "ash"], pictures=pictures).of("near-duplicate")
    assert (found.row, found.other) == (24, 4)
    pictures[-1] = fingerprint(np.asarray(scene(99)))
    assert not audit(rows, [*labels, "ash"], pictures=pictures).of("near-duplicate")


# The share of wrong labels.


def test_the_share_of_wrong_labels_and_their_probabilities_are_those_of_the_draw():
    """Labels drawn from known probabilities, some replaced: the mixture finds both."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(4000, 5, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    bad = torch.rand(4000, generator=generator) < 0.06
    shift = torch.randint(1, 5, (4000,), generator=generator)
    given = torch.where(bad, (labels + shift) % 5, labels)
    found = fit_label_noise([logits], given, torch.ones(4000, dtype=torch.bool), [1.0])
    assert found.rate == pytest.approx(0.06, abs=0.015)
    assert found.weights[0] == pytest.approx(1, abs=0.1)
    for low, high in ((0.0, 0.2), (0.2, 0.6), (0.6, 1.0)):
        some = (found.wrong >= low) & (found.wrong < high)
        assert float(bad[some].double().mean()) == pytest.approx(
            float(found.wrong[some].mean()), abs=0.1
        )


# Sets that cannot speak.


def test_one_shot_a_class_has_no_label_that_can_be_judged():
    features, labels = make(per_class=1)
    result = audit(features, labels)
    assert not result.of("label")
    assert not result.of("harmful")
    assert any("No class has two images" in notice for notice in result.notices)


def test_one_class_has_no_wrong_label():
    features, _ = make(classes=1)
    result = audit(features, ["ash"] * 8)
    assert not result.of("label")
    assert any("only one class" in notice for notice in result.notices)


def test_a_class_that_its_group_would_take_away_is_not_judged_and_said_so():
    features, labels = make()
    groups = ["burst" if label == "elm" else None for label in labels]
    wrong = labels.copy()
    wrong[8] = "oak"  # of the burst, but oak has other rows
    model = model_of(features, wrong, [0 if g else row + 1 for row, g in enumerate(groups)])
    assert model.counted.tolist() == [label != "elm" for label in wrong]
    result = audit(features, wrong, groups=groups)
    assert not any(finding.row in range(9, 16) for finding in result.of("label"))
    assert any(
        notice.startswith("Labels not checked: 7 (the first is that of Row 9)")
        for notice in result.notices
    )


def test_rows_without_a_label_are_ignored_with_a_notice_and_keep_their_numbers():
    features, labels = make()
    wrong = labels.copy()
    wrong[17] = "ash"
    given = [None, None, *wrong]
    rows = np.concatenate([np.full((2, 10), np.nan), features])  # nobody looks at them
    result = audit(rows, given)
    assert [finding.row for finding in result.of("label")] == [19]
    assert "Rows without a label were ignored: 2." in result.notices


def test_nothing_but_copies_is_no_reason_to_fail():
    features, _ = make()
    rows = np.repeat(features[:2], 10, axis=0)
    result = audit(rows, ["ash", "elm"] * 10, hashes=[0] * 10 + [1] * 10)
    assert {finding.kind for finding in result.findings} <= {"leak", "duplicate", "label"}
    assert len(result.of("leak")) + len(result.of("duplicate")) == 18
    alone = audit(features[:1], ["ash"])
    assert not alone.findings


def test_two_classes_and_numbers_as_labels():
    features, labels = make(classes=2)
    numbers = (labels == "elm").astype(int)
    numbers[3] = 1
    found = audit(features, numbers).of("label")
    assert [(finding.row, finding.suggestion) for finding in found] == [(3, 0)]


def test_only_the_most_suspicious_rows_are_taken_away_for_a_try(monkeypatch):
    features, labels = make(spread=0.6)
    wrong = labels.copy()
    wrong[[2, 9, 17]] = "elm", "oak", "ash"
    everything = {finding.row for finding in audit(features, wrong).of("harmful")}
    monkeypatch.setattr(verdicts, "MOST_REMOVALS", 1)
    assert {finding.row for finding in audit(features, wrong).of("harmful")} < everything


def test_a_class_without_a_text_is_one_sentence():
    features, labels = make()
    with pytest.raises(DataError, match="no class 'elm'") as caught:
        audit(features, labels, text_prior=TextPrior(["ash"], np.ones((1, 10))))
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(
    not FILE.exists(), reason=f"{FILE} is absent: set GPCACHE_DEV_DATA to the development data"
)
def test_planted_errors_among_real_features_are_found():
    stored = np.load(FILE)
    features = stored["train4_x"].astype(np.float32)
    labels = stored["classnames"][stored["train4_y"]]
    generator = np.random.default_rng(0)
    planted = generator.choice(len(labels), 20, replace=False)
    names = np.unique(labels)
    wrong = labels.copy()
    for row in planted:
        wrong[row] = generator.choice(names[names != labels[row]])
    found = audit(features, wrong)
    certain, first = found.of("label"), (found.of("label") + found.of("look"))[:30]
    assert len({finding.row for finding in first} & {*planted.tolist()}) >= 14
    assert len({finding.row for finding in certain} & {*planted.tolist()}) >= 0.8 * len(certain) > 0
    assert not audit(features, labels).of("label")
