"""The search: fusion weights against a numerical optimiser, the walk against a whole lattice."""

import itertools
import math
import signal
from dataclasses import asdict

import numpy as np
import pytest
import scipy.optimize
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpcache.methods.cache import search as searching
from gpcache.methods.cache.search import (
    CacheOutputs,
    Defaults,
    OneShot,
    SearchOptions,
    search,
    shipped,
)

COLUMNS = ["beta", "noise", "alpha", "eta", "gain", "nll", "accuracy", "score"]


@pytest.fixture
def held_out():
    """Noisy outputs on 40 rows of 4 classes: the best α, η and gain are finite."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    labels = torch.randint(4, (40,), generator=generator)
    hot = torch.nn.functional.one_hot(labels, 4).double()
    variance = torch.rand(40, 1, generator=generator, dtype=torch.float64) * 0.9 + 0.1
    mean = (0.3 * hot + 0.2 * draw(40, 4)) * variance
    return CacheOutputs(mean, variance, 4 * hot + 4 * draw(40, 4), labels, -123.0)


def only(held_out, numbers, *, shots=math.inf):
    """The choice at the one (β, noise) that is given."""
    asked = SearchOptions(**{"beta": 2.0, "noise": 0.5} | numbers)
    found = search(lambda *_: [held_out], asked, shots=shots, uses_noise=True)
    assert len(found) == 1
    return found[0]


def fused(held_out, alpha, eta=0.0, gain=1.0):
    logits = alpha * held_out.mean / held_out.variance**eta
    return logits if held_out.zero_shot is None else logits + gain * held_out.zero_shot


def nll(held_out, *numbers):
    return float(torch.nn.functional.cross_entropy(fused(held_out, *numbers), held_out.labels))


def smoothed(held_out, *numbers):
    """Targets 1 − ε at the label and ε/3 at the three others, with ε = 1/(40 + 2)."""
    hot = torch.nn.functional.one_hot(held_out.labels, 4).double()
    targets = hot * 41 / 42 + (1 - hot) / 42 / 3
    return float(-(targets * fused(held_out, *numbers).log_softmax(1)).sum(1).mean())


@pytest.mark.parametrize("eta", [0.0, 1.0])
@pytest.mark.parametrize("with_text", [True, False])
@pytest.mark.parametrize("gain", [0.7, "auto"])
def test_alpha_and_gain_minimise_the_smoothed_nll(eta, with_text, gain, held_out):
    if not with_text:
        held_out = held_out._replace(zero_shot=None)
    choice = only(held_out, {"eta": eta, "gain": gain})
    free = with_text and gain == "auto"

    def loss(x):
        return smoothed(held_out, x[0], eta, x[1] if free else 0.7)

    start = [1.0, 1.0] if free else [1.0]
    best = scipy.optimize.minimize(loss, start, method="Nelder-Mead", options={"xatol": 1e-7})
    assert choice.score == pytest.approx(best.fun, abs=1e-7)
    assert choice.alpha == pytest.approx(best.x[0], rel=1e-3)
    if free:
        assert choice.gain == pytest.approx(best.x[1], rel=1e-3)
    assert choice.nll == pytest.approx(nll(held_out, choice.alpha, eta, choice.gain))


def test_alpha_is_nought_where_the_cache_knows_nothing(held_out):
    choice = only(held_out._replace(mean=-held_out.mean), {"eta": 0.0, "gain": 1.0})
    assert choice.alpha == 0.0
    assert choice.nll == pytest.approx(nll(held_out, 0.0))


def test_eta_is_the_best_of_its_grid_with_its_own_alpha(held_out):
    choice = only(held_out, {"gain": 1.0})
    losses = [only(held_out, {"gain": 1.0, "eta": eta}).score for eta in searching.ETAS]
    assert choice.eta == searching.ETAS[int(np.argmin(losses))]
    assert 0 < choice.eta < searching.ETAS[-1]
    assert choice.score == pytest.approx(min(losses))
    assert only(held_out._replace(variance=None), {}).eta == 0


def test_numbers_that_are_given_are_kept(held_out):
    given_numbers = {"alpha": 1.5, "beta": 3.0, "noise": 0.7, "eta": 0.25, "gain": 0.5}
    for criterion, strategy in itertools.product(
        ("nll", "accuracy", "marginal_likelihood"), ("adaptive", "grid")
    ):
        asked = given_numbers | {"criterion": criterion, "strategy": strategy}
        choice = asdict(only(held_out, asked, shots=1))
        assert {name: choice[name] for name in given_numbers} == given_numbers
        assert choice["nll"] == pytest.approx(nll(held_out, 1.5, 0.25, 0.5))


def test_the_criterion_says_what_is_scored(held_out):
    by_nll = only(held_out, {"criterion": "nll"})
    assert by_nll == only(held_out, {})
    assert by_nll.score == pytest.approx(smoothed(held_out, by_nll.alpha, by_nll.eta, by_nll.gain))
    by_accuracy = only(held_out, {"criterion": "accuracy", "gain": 1.0})
    assert by_accuracy.score == -by_accuracy.accuracy
    # Per value: 123 nats over 40 rows of 4 classes.
    by_evidence = only(held_out, {"criterion": "marginal_likelihood"})
    assert by_evidence.score == pytest.approx(123 / 160)


def test_accuracy_is_the_best_of_the_grid_and_nll_breaks_ties(held_out):
    choice = only(held_out, {"criterion": "accuracy", "gain": 1.0})
    scores = {}
    for a, eta in itertools.product(searching.ALPHAS, searching.ETAS):
        alpha = a * 1.5  # (1 + noise): the mean shrinks with the noise
        logits = held_out.zero_shot + alpha * held_out.mean / held_out.variance**eta
        right = float((logits.argmax(1) == held_out.labels).double().mean())
        scores[alpha, eta] = (-right, nll(held_out, alpha, eta))
    best = min(scores, key=scores.get)
    assert (choice.alpha, choice.eta) == pytest.approx(best)
    assert (-choice.accuracy, choice.nll) == pytest.approx(scores[best])


# The walk on an objective of our own: the marginal likelihood may be any function.


def bowl(*centre, curvature=(1.0, 1.0, 1.0)):
    """A function of (β, noise, gain) with its bottom at these logarithms; no gain, no slope."""

    def objective(*place):
        sides = zip(place, centre, curvature, strict=False)
        return sum(steep * (math.log(value) - x) ** 2 for value, x, steep in sides)

    return objective


def walk(objective, *, shots=math.inf, uses_noise=True, **numbers):
    """Search where the score at (β, noise, gain) is objective(β, noise, gain), plus the pull."""
    labels = torch.zeros(2, dtype=torch.long)
    mean = torch.eye(2, dtype=torch.float64)

    def evaluate(beta, noises, gain):
        values = [-objective(beta, noise, gain) * mean.numel() for noise in noises]
        return [CacheOutputs(mean, None, None, labels, value) for value in values]

    asked = SearchOptions(criterion="marginal_likelihood", alpha=1.0, **numbers)
    return search(evaluate, asked, shots=shots, uses_noise=uses_noise)


def lattice(coordinates):
    """Half steps of the walk around the defaults, within its range."""
    steps = [step / 2 for step in searching.STEPS]
    axes = [
        [math.exp(i * s) for i in range(-60, 61) if low <= math.exp(i * s) <= high]
        for s, (low, high) in zip(steps, searching.RANGES, strict=True)
    ]
    return list(itertools.product(*axes[:coordinates]))


@given(
    centre=st.tuples(st.floats(-4, 5), st.floats(-11, 6)),
    curvature=st.tuples(st.floats(0.05, 3), st.floats(0.05, 3)),
)
def test_the_walk_finds_the_lowest_point_of_a_bowl(centre, curvature):
    """As low as the whole lattice, wherever the bottom is, within the range or beyond it."""
    objective = bowl(*centre, curvature=curvature)
    seen = walk(objective)
    lowest = min(objective(*place) for place in lattice(2))
    assert seen[0].score == pytest.approx(lowest, rel=1e-9, abs=1e-12)
    assert {choice.gain for choice in seen} == {1.0}
    assert len(seen) < 80  # the lattice has 525 places


@settings(max_examples=40)
@given(
    centre=st.tuples(st.floats(-4, 5), st.floats(-11, 6), st.floats(-4.5, 1.5)),
    curvature=st.tuples(st.floats(0.05, 3), st.floats(0.05, 3), st.floats(0.05, 3)),
)
def test_the_walk_with_the_gain_finds_the_lowest_point_of_a_bowl(centre, curvature):
    """As low as the whole lattice, where the gain shapes the targets and is walked as well."""
    objective = bowl(*centre, curvature=curvature)
    seen = walk(objective, residual=True)
    lowest = min(objective(*place) for place in lattice(3))
    assert seen[0].score == pytest.approx(lowest, rel=1e-9, abs=1e-12)
    assert seen[0].score == pytest.approx(objective(seen[0].beta, seen[0].noise, seen[0].gain))
    assert len(seen) < 100  # the lattice has 6,825 places


def test_the_worth_of_the_text_is_looked_at_from_afar():
    """No step from gain 1 goes down, and beyond the ridge it is lower."""

    def ridge(beta, noise, gain):
        height = np.interp(math.log2(gain), [-5, -3, -1, 0, 1], [4, 0, 6, 2, 4])
        return bowl(1.0, 1.0)(beta, noise) + height

    best = walk(ridge, residual=True)[0]
    assert math.log2(best.gain) == pytest.approx(-3)


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize(("beta", "noise"), [(1.0, 1.0), (9.0, 0.05)])
def test_on_a_plateau_the_defaults_are_kept(beta, noise, residual):
    base = Defaults(beta=beta, noise=noise)
    best = walk(lambda *_: 1.0, shots=1, defaults=base, residual=residual)[0]
    assert (best.beta, best.noise, best.gain) == (beta, noise, 1.0)


@pytest.mark.parametrize("residual", [False, True])
def test_the_walk_ends_where_every_score_is_nan(residual):
    previous = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("the walk does not end"))
    signal.alarm(2)
    try:
        seen = walk(lambda *_: math.nan, residual=residual)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
    assert all(math.isnan(choice.score) for choice in seen)


@pytest.mark.parametrize(
    ("name", "value"), [("beta", 100.0), ("beta", 0.01), ("noise", 1e4), ("gain", 16.0)]
)
def test_a_number_beyond_the_range_does_not_stop_the_other_from_being_chosen(name, value):
    """The range bounds what is walked, not what is given."""
    other = "noise" if name == "beta" else "beta"
    seen = walk(bowl(2.0, 2.0, -1.0), residual=True, **{name: value})
    assert {getattr(choice, name) for choice in seen} == {value}
    assert math.log(getattr(seen[0], other)) == pytest.approx(2.0, abs=0.4)


def test_fewer_shots_stay_nearer_to_the_defaults():
    objective = bowl(3.0, -3.0, curvature=(0.02, 0.02))
    found = {shots: walk(objective, shots=shots)[0] for shots in (1, 2, 4, 16, 256)}
    away = [abs(math.log(c.beta)) + abs(math.log(c.noise)) for c in found.values()]
    assert away == sorted(away)
    assert away[0] < 0.6 * away[-1]
    for shots, choice in found.items():
        distance = math.log(choice.beta) ** 2 + math.log(choice.noise) ** 2
        pulled = objective(choice.beta, choice.noise) + searching.PULL / shots * distance
        assert choice.score == pytest.approx(pulled)


def test_with_few_shots_the_gain_stays_near_one():
    objective = bowl(0.0, 0.0, -2.5, curvature=(0.02, 0.02, 0.02))
    found = {shots: walk(objective, shots=shots, residual=True)[0] for shots in (1, 4, 256)}
    gains = [choice.gain for choice in found.values()]
    assert 1 > gains[0] > gains[1] > gains[2]
    for shots, choice in found.items():
        place = (choice.beta, choice.noise, choice.gain)
        distance = sum(math.log(value) ** 2 for value in place)
        pulled = objective(*place) + searching.PULL / shots * distance
        assert choice.score == pytest.approx(pulled)


@pytest.mark.parametrize("strategy", ["adaptive", "grid"])
def test_the_gain_that_shapes_the_cache_weighs_the_text_too(strategy, held_out):
    """Every place is asked at its gain, and its α is the best for that very gain."""

    def at(gain):
        return held_out._replace(mean=held_out.mean * (2 - gain) + 0.1 * gain)

    asked = SearchOptions(beta=2.0, noise=0.5, eta=0.0, residual=True, strategy=strategy)
    seen = search(lambda *place: [at(place[2])], asked, shots=4, uses_noise=True)
    assert len({choice.gain for choice in seen}) == len(seen) >= len(searching.GAINS)
    for choice in seen:
        assert choice.nll == pytest.approx(nll(at(choice.gain), choice.alpha, 0.0, choice.gain))
        pull = searching.PULL / 4 * math.log(choice.gain) ** 2 if strategy == "adaptive" else 0
        around = [
            smoothed(at(choice.gain), f * choice.alpha, 0.0, choice.gain) for f in (0.99, 1, 1.01)
        ]
        assert around[1] == min(around)
        assert choice.score == pytest.approx(around[1] + pull)


def test_the_grid_is_looked_at_whole_and_nothing_pulls():
    objective = bowl(1.0, 1.0, curvature=(1.0, 2.0))
    seen = walk(objective, shots=1, strategy="grid")
    places = {(c.beta, c.noise) for c in seen}
    assert places == set(itertools.product(searching.BETAS, searching.NOISES))
    assert (seen[0].beta, seen[0].noise) == min(places, key=lambda place: objective(*place))
    assert all(c.score == pytest.approx(objective(c.beta, c.noise)) for c in seen)
    assert {choice.gain for choice in seen} == {1.0}


@pytest.mark.parametrize("given_gain", ["auto", 0.7])
def test_the_grid_sweeps_the_gain_that_shapes_the_targets(given_gain):
    objective = bowl(1.0, 1.0, -1.5, curvature=(1.0, 2.0, 0.5))
    seen = walk(objective, shots=1, strategy="grid", residual=True, gain=given_gain)
    gains = searching.GAINS if given_gain == "auto" else (given_gain,)
    places = {(c.beta, c.noise, c.gain) for c in seen}
    assert places == set(itertools.product(searching.BETAS, searching.NOISES, gains))
    assert len(seen) == len(places)
    best = (seen[0].beta, seen[0].noise, seen[0].gain)
    assert best == min(places, key=lambda place: objective(*place))
    assert all(c.score == pytest.approx(objective(c.beta, c.noise, c.gain)) for c in seen)


def test_among_places_of_equal_accuracy_the_lowest_nll_comes_first(held_out):
    def evaluate(beta, noises, _):
        return [held_out._replace(mean=(1 + 1e-3 * beta) * held_out.mean) for _ in noises]

    asked = SearchOptions(
        alpha=0.1, noise=1.0, eta=0.0, gain=1.0, criterion="accuracy", strategy="grid"
    )
    seen = search(evaluate, asked, shots=1, uses_noise=True)
    assert len({choice.score for choice in seen}) == 1
    assert [c.beta for c in seen] == sorted(searching.BETAS, reverse=True)


@pytest.mark.parametrize("strategy", ["adaptive", "grid"])
def test_the_table_is_sorted_and_complete(strategy):
    seen = walk(bowl(1.0, -2.0), strategy=strategy)
    assert list(searching.COLUMNS) == COLUMNS
    for choice in seen:
        found = asdict(choice)
        assert list(found)[:9] == [*COLUMNS, "losses"]
        # The rest belongs to the softmax likelihood.
        assert set(list(found.values())[9:]) == {0.0}
    for choice in seen:
        assert len(choice.losses) > 1
    scores = [choice.score for choice in seen]
    assert scores == sorted(scores)
    assert len({(c.beta, c.noise) for c in seen}) == len(seen) > 5


def test_a_method_without_noise_does_not_look_for_it():
    seen = walk(bowl(2.0, 5.0), uses_noise=False)
    assert {choice.noise for choice in seen} == {1.0}
    assert math.log(seen[0].beta) == pytest.approx(2.0, abs=0.2)


@pytest.mark.parametrize("with_text", [True, False])
def test_what_is_shipped_gives_way_to_what_is_asked(with_text):
    base = Defaults(2.0, 7.0, with_text=OneShot(0.1, 3.0), without_text=OneShot(0.2, 4.0))
    one_shot = [0.1, 3.0] if with_text else [0.2, 4.0]
    plain = asdict(shipped(SearchOptions(defaults=base), with_text=with_text))
    assert [plain[name] for name in COLUMNS[:5]] == [2.0, *one_shot, 0.0, 1.0]
    asked = {"beta": 3.0, "noise": 0.7, "alpha": 1.5, "eta": 0.25, "gain": 0.5}
    choice = asdict(shipped(SearchOptions(**asked), with_text=with_text))
    assert {name: choice[name] for name in asked} == asked
