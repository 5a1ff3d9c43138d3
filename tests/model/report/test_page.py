"""The page: what it says is what was measured, nothing is fetched, and no name becomes markup."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, precision_score, recall_score, roc_auc_score

from gpcache import DataError
from gpcache.metrics import aurc
from gpcache.model.advice import Advice
from gpcache.model.evaluation import Unknown
from gpcache.model.report import Case, Embedding, Evidence, Report, render, write_report


@pytest.fixture(scope="module")
def report(full):
    return full()


@pytest.fixture(scope="module")
def html(report):
    return render(report)


@pytest.fixture
def page(html, read):
    return read(html)


def captioned(page, words):
    """The table with these words in its caption."""
    return next(t for t in page.find("table") if words in t.find("caption")[0].text)


def rows(table):
    return [[cell for cell in tr.children if cell.tag in ("th", "td")] for tr in table.find("tr")]


def in_percent(share):
    return f"{100 * share:.1f}\xa0%"


def test_headline_has_the_figures_of_both_evaluations(report, page):
    cards = page.find("section", **{"class": "card"})
    assert len(cards) == 2
    for card, found in zip(cards, (report.test, report.held_out), strict=True):
        low, high = found.interval
        assert in_percent(found.accuracy) in card.text
        assert f"{100 * low:.1f}–{in_percent(high)}, n\xa0=\xa0{len(found)}" in card.text
        assert in_percent(found.ece) in card.text
        assert f"{found.nll:.3f}" in card.text
        assert f"{found.rejected.sum()} of {len(found)}" in card.text
        assert found.data in card.text
        assert found.protocol in card.text


def test_every_accuracy_of_answers_given_has_its_interval_and_count(report, page):
    kept = ~report.test.rejected
    assert 0 < kept.sum() < len(kept)
    text = page.text
    share = in_percent(report.test.correct[kept].mean())
    assert re.search(rf"{share} are right \([\d.]+–[\d.]+\xa0%, n\xa0=\xa0{kept.sum()}\)", text)


def test_classes_agree_with_scikit_learn_and_come_worst_first(report, page):
    test = report.test
    table = captioned(page, "Classes")
    shown = {r[0].text: [cell.text for cell in r[1:]] for r in rows(table)[1:]}
    recall = recall_score(test.labels, test.predicted, average=None)
    precision = precision_score(test.labels, test.predicted, average=None)
    for i, name in enumerate(test.class_names):
        count = str((test.labels == i).sum())
        assert shown[name] == [count, in_percent(recall[i]), in_percent(precision[i])]
    values = [float(r[2].attributes["data-value"]) for r in rows(table)[1:]]
    assert values == sorted(values)


def test_confusion_matrix_agrees_with_scikit_learn(report, page):
    test = report.test
    table = captioned(page, "Rows: true class")
    shown = [[int(cell.text or 0) for cell in r[1:]] for r in rows(table)[1:]]
    np.testing.assert_array_equal(shown, confusion_matrix(test.labels, test.predicted))
    first = captioned(page, "Most frequent")
    worst = [cell.text for cell in rows(first)[1]]
    assert worst == [str(part) for part in test.confusions(1)[0]]


def test_captions_have_the_areas_under_both_curves(report, page):
    captions = " ".join(c.text for c in page.find("figcaption"))
    for one in (report.test, report.held_out):
        assert f"AURC {aurc(one.confidence, one.correct):.4f} ({one.data}" in captions


def test_what_the_confidence_is_worth_is_shown(report, read):
    test = report.test
    generator = np.random.default_rng(5)
    unknown = Unknown(generator.random(9), generator.random(9) < 0.5)
    given = replace(test, familiarity=generator.random(len(test)), unknown=unknown)
    plain, shown = (read(render(Report("doubts", test=one))) for one in (test, given))
    lines = [
        {d.find("dt")[0].text: d.find("dd")[0].text for d in page.find("div") if d.find("dt")}
        for page in (plain, shown)
    ]
    for found in lines:
        order = np.argsort(-test.confidence)[: round(0.9 * len(test))]
        share = test.correct[order].mean()
        assert found["accuracy of the most confident 90.0\xa0%"] == in_percent(share)
        area = roc_auc_score(test.correct, test.confidence)
        told = found["separates right from wrong answers"]
        assert told.startswith(f"AUROC {in_percent(area)}, FPR95 ")
    assert "unknown images refused" not in lines[0]
    assert lines[1]["unknown images refused"] == f"{unknown.rejected.sum()} of 9"
    area = roc_auc_score(
        np.arange(len(test) + 9) < len(test), np.append(given.familiarity, unknown.familiarity)
    )
    assert lines[1]["separates known from unknown images"].startswith(f"AUROC {in_percent(area)}")


def test_evidence_is_signed_and_its_sum_is_shown(page):
    case = page.find("li", **{"class": "case card"})[0]
    voices = case.find("ol")[0].find("li")
    assert [v.attributes["class"] for v in voices] == ["for", "against", "for"]
    assert [v.find("b")[0].text for v in voices] == ["+1.50", "−0.50", "+0.25"]
    assert [len(v.find("img")) for v in voices] == [1, 1, 0]
    assert "Sum of these +1.25, other photos +0.12, class name +2.00: total +3.38" in case.text
    assert "62.5\xa0%" in case.text


def test_settings_facts_and_refusals_are_shown(page):
    settings = next(s for s in page.find("section") if s.find("h2")[0].text == "Settings")
    assert [d.text for d in settings.find("dd")] == ["1", "0.1", "2", "5"]
    assert "6 settings were scored" in settings.text
    assert "the image is truncated" in captioned(page, "refused").text
    assert "lite" in page.text


def test_nothing_is_fetched(html, page):
    references = []

    def visit(node):
        for key, value in node.attributes.items():
            if key in ("src", "href", "srcset", "action", "data", "poster", "xlink:href"):
                references.append(value)
            references.extend(re.findall(r"url\(([^)]*)\)", value or ""))
        for child in node.children:
            if not isinstance(child, str):
                visit(child)

    visit(page)
    assert len(references) > 10
    assert {r.partition(":")[0] for r in references if not r.startswith("#")} == {"data"}
    style = page.find("style")[0].text
    assert "@import" not in style
    assert "url(" not in style
    assert "http://" not in html
    assert "https://" not in html


def test_local_links_lead_to_one_place_each(html):
    ids = re.findall(r'\sid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    targets = re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', html)
    assert {a or b for a, b in targets} <= set(ids)


def test_drawings_are_well_formed_and_described(html):
    drawings = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert len(drawings) == 5
    for drawing in drawings:
        root = ElementTree.fromstring(drawing)
        assert root.get("role") == "img"
        assert root.get("aria-label")
        assert len(list(root.iter("path"))) > 5


def test_page_can_be_read_without_seeing_it(page):
    assert page.find("html")[0].attributes["lang"] == "en"
    assert len(page.find("h1")) == 1
    assert all(image.attributes["alt"] for image in page.find("img"))
    tables = page.find("table")
    assert len(tables) == 5
    for table in tables:
        assert table.find("caption")[0].text
        assert all(head.attributes["scope"] in ("row", "col") for head in table.find("th"))


def test_hostile_names_stay_text(hostile, hostile_names, full, read):
    html = render(hostile)
    page, plain = read(html), read(render(full(c=len(hostile_names))))
    # The only script is ours, and no element or attribute came with a name.
    assert [s.text for s in page.find("script")] == [s.text for s in plain.find("script")]
    for tag in ("img", "b", "i", "bdi", "li"):
        assert len(page.find(tag)) == len(plain.find(tag))
    assert not re.search(r"<[^>]*\son\w+=", re.sub(r'"[^"]*"', '""', html))
    titles = {node.attributes["title"] for node in page.find("bdi")}
    for name in hostile_names[:6]:
        assert name in titles
    assert "line�break��[31m" in titles
    assert "? not text" in titles


def test_page_is_utf8_and_written_whole(hostile, tmp_path):
    path = tmp_path / "report.html"
    write_report(hostile, path)
    assert path.read_bytes() == render(hostile).encode("utf-8")
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_same_report_gives_the_same_page(full, html):
    assert render(full()) == html


def test_parts_that_are_absent_are_left_out(report, read):
    few = replace(report, embedding=None, search=None)
    page = read(render(replace(few, test=None)))
    assert len(page.find("section", **{"class": "card"})) == 1
    assert "training photos" in page.find("p", **{"class": "note"})[0].text
    page = read(render(replace(few, held_out=None)))
    assert len(page.find("section", **{"class": "card"})) == 1
    page = read(render(Report("Nothing yet")))
    assert "The accuracy is not known" in page.text
    assert page.find("h2") == []


@pytest.mark.parametrize("n", [1, 2])
def test_one_class_few_images_all_right(n, evaluation, read):
    test = evaluation(n, 1)
    embedding = Embedding("photos/", test.class_names, test.labels, np.eye(n))
    report = Report("tiny", test=test, embedding=embedding)
    text = read(render(report)).text
    assert "100.0\xa0%" in text
    assert "All answers are right" in text


def test_all_answers_refused(evaluation, read):
    test = replace(evaluation(8, 3), rejected=np.ones(8, dtype=bool))
    text = read(render(Report("shy", test=test))).text
    assert "8 of 8" in text
    assert "Of the answers" not in text


def test_class_without_images_has_no_recall(evaluation, read):
    test = evaluation(30, 3)
    empty = replace(test, labels=np.minimum(test.labels, 1))
    last = rows(captioned(read(render(Report("empty", test=empty))), "Classes"))[-1]
    assert [cell.text for cell in last[:3]] == ["class 2", "0", "–"]


def test_without_text_the_class_name_adds_nothing(image, read):
    case = Case(image(), "a.jpg", "a", "b", 0.5, [Evidence(None, "b", 1.0)], others=-2.0)
    text = read(render(Report("bare", cases={"Hardest": [case]}))).text
    assert "class name" not in text
    assert "class average" not in text
    assert "total −1.00" in text
    case = replace(case, average=0.75)
    text = read(render(Report("bare", cases={"Hardest": [case]}))).text
    assert "other photos −2.00, class average +0.75: total −0.25" in text


def test_numbers_that_were_not_searched_for(read):
    given = {key: np.array([1.0]) for key in ("beta", "noise", "alpha")} | {
        "score": np.array([np.nan])
    }
    page = read(render(Report("given", chosen={"beta": 1.0}, search=given)))
    assert "not searched for" in page.text
    assert page.find("svg") == []


def test_three_hundred_classes_stay_readable(evaluation, read):
    c, n = 300, 2500
    test = evaluation(n, c, right=0.5)
    features = np.random.default_rng(0).normal(size=(n, 8))
    embedding = Embedding("photos/", test.class_names, test.labels, features)
    html = render(Report("many", test=test, embedding=embedding))
    page = read(html)
    assert len(rows(captioned(page, "Most frequent"))) == 21
    assert len(rows(captioned(page, "Classes"))) == c + 1
    assert page.find("table", **{"class": "confusion"}) == []
    assert page.find("ol", **{"class": "legend"}) == []
    assert len(page.find("image")) == 2  # the matrix and the points are pictures
    assert len(html) < 1_500_000


@pytest.mark.parametrize("data", [b"", b"<svg onload='alert(1)'></svg>", b"GIF89a"])
def test_only_jpeg_and_png_are_embedded(data):
    case = Case(data, "a.jpg", "a", "b", 0.5)
    with pytest.raises(DataError, match="neither JPEG nor PNG"):
        render(Report("bad", cases={"Hardest": [case]}))


def test_advice_is_a_section_of_its_own(report):
    advice = [Advice("few", "'<b>' has 1 photo, the median class 9: add photos of it.")]
    page = render(replace(report, advice=advice))
    assert "&lt;b&gt;&#39; has 1 photo" in page
    assert ">Advice<" in page
    assert ">Advice<" not in render(report)
