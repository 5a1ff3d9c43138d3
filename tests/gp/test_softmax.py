"""The softmax likelihood: the posterior mode against logistic regression, autograd and refits."""

import itertools

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch.nn.functional import log_softmax, one_hot

from gpcache.errors import NumericalError
from gpcache.gp import softmax
from gpcache.gp.softmax import (
    TOLERANCES,
    Coefficients,
    leave_out,
    softmax_map,
    solve_rows,
)

# Every class has a shot here.
UNEQUAL, EQUAL = (9, 1, 4, 7, 2, 5), (4, 4, 4, 4, 4, 4)
TAUS = (0.01, 1.0, 30.0, 1000.0)
# Of probabilities in float64, as the module promises.
CLOSE = {"rtol": 0, "atol": 1e-6}
# Of probabilities in float32, by the largest τ that it holds for.
SINGLE = {30.0: 1e-4, 1e4: 1e-3, 3e5: 5e-3}


@pytest.fixture(scope="module")
def make(tools, device):
    """A problem, and the solver's arguments for it: product, text logits, one-hot labels."""

    def make(*, name="exact", shots=UNEQUAL, dtype=torch.float64, text=2.0, options=None, **rest):
        problem = tools.make_problem(shots=shots, device=device, dtype=dtype, **rest)
        precision = tools.build(name, problem, **(options or {}))
        targets = one_hot(problem.labels, len(shots)).to(problem.keys)
        generator = torch.Generator().manual_seed(7)
        offset = text * torch.randn(targets.shape, generator=generator, dtype=torch.float64)
        return problem, precision, (precision.prior_product, offset.to(problem.keys), targets)

    return make


def answers(precision, problem, found):
    """Logits (m, c) of the cache at the queries."""
    return precision.prior_rows(problem.queries) @ precision.prior_coefficients(found.values)


def probabilities(precision, problem, found):
    return answers(precision, problem, found).softmax(-1).double().cpu().numpy()


def objective(values, kernel, offset, targets, tau):
    """The definition: Σ cross-entropy(offset + K A, y) + tr(Aᵀ K A) / (2 τ)."""
    logits = offset + kernel @ values
    return -(targets * log_softmax(logits, -1)).sum() + (values * (kernel @ values)).sum() / (
        2 * tau
    )


def prior_covariance(tools, x, y, beta):
    """κ, in numpy."""
    return tools.rbf(tools.numpy64(x), tools.numpy64(y), beta)


def logistic_regression(tools, problem, penalty, row_weights=None):
    """scikit-learn's probabilities at the queries, on features whose inner product is the prior.

    The features are a root of the covariance of keys and queries together, so that none is
    inverted. C = τ: both multiply the loss by it and add half the squared weights.
    """
    points = torch.cat([problem.keys, problem.queries])
    values, vectors = np.linalg.eigh(prior_covariance(tools, points, points, problem.beta))
    features, n = vectors * np.sqrt(values.clip(min=0)), len(problem.keys)
    model = LogisticRegression(
        C=penalty, fit_intercept=False, solver="newton-cholesky", tol=1e-10, max_iter=1000
    ).fit(features[:n], problem.labels.cpu().numpy(), sample_weight=row_weights)
    return model.predict_proba(features[n:])


# The optimum.


@pytest.mark.parametrize("shots", [UNEQUAL, EQUAL], ids=["unequal shots", "equal shots"])
@pytest.mark.parametrize("beta", [0.1, 0.5, 2.0, 10.0])
@pytest.mark.parametrize("tau", TAUS)
def test_without_text_it_is_scikit_learns_logistic_regression(tau, beta, shots, make, tools):
    problem, precision, arguments = make(shots=shots, beta=beta, text=0.0)
    found = probabilities(precision, problem, softmax_map(*arguments, tau))
    np.testing.assert_allclose(found, logistic_regression(tools, problem, tau), **CLOSE)


@pytest.mark.parametrize("tau", TAUS)
def test_two_classes_are_scikit_learns_with_one_vector(tau, make, tools):
    """Ours has two opposite vectors of half the length: half the penalty."""
    problem, precision, arguments = make(shots=(7, 12), text=0.0)
    found = probabilities(precision, problem, softmax_map(*arguments, tau))
    np.testing.assert_allclose(found, logistic_regression(tools, problem, 2 * tau), **CLOSE)


@pytest.mark.parametrize("tau", TAUS)
def test_the_gradient_of_the_definition_vanishes(tau, make):
    """‖K g‖ ≤ √λ · ‖g‖ in the kernel's norm, of which max(τ, 1) times is what the solver bounds."""
    _, precision, (product, offset, targets) = make()
    found = softmax_map(product, offset, targets, tau)
    values = found.values.clone().requires_grad_()
    objective(values, precision.prior, offset, targets, tau).backward()
    bound = TOLERANCES[torch.float64] / max(tau, 1) * targets.norm()
    assert values.grad.norm() <= bound * torch.linalg.matrix_norm(precision.prior, 2).sqrt()
    # Elsewhere it is not that small.
    away = (found.values + 1e-3).requires_grad_()
    objective(away, precision.prior, offset, targets, tau).backward()
    assert away.grad.norm() > 10 * values.grad.norm()


@pytest.mark.parametrize("tau", TAUS)
def test_no_perturbation_lowers_the_objective(tau, make):
    """Of any size; a rounding of 1e-12 of the objective apart."""
    _, precision, (product, offset, targets) = make()
    values = softmax_map(product, offset, targets, tau).values
    least = objective(values, precision.prior, offset, targets, tau)
    generator = torch.Generator().manual_seed(3)
    for size in (1e-5, 1e-3, 1e-1, 10.0):
        for _ in range(10):
            draw = torch.randn(values.shape, generator=generator).to(values)
            there = objective(values + size * draw, precision.prior, offset, targets, tau)
            assert there >= least * (1 - 1e-12)


@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("beta", [0.5, 2.0])
def test_coefficients_are_what_the_answer_leaves_of_the_labels(beta, tau, make):
    """A = τ (Y − softmax(f)), to the tolerance in the kernel's norm."""
    _, precision, (product, offset, targets) = make(beta=beta)
    found = softmax_map(product, offset, targets, tau)
    gap = found.values - tau * (targets - (offset + found.products).softmax(-1))
    allowed = TOLERANCES[torch.float64] * min(tau, 1) * targets.norm()
    assert (gap * (precision.prior @ gap)).sum().sqrt() <= allowed
    # The coefficients of a shot sum to zero, as its probabilities sum to one.
    assert found.values.sum(-1).abs().max() < 1e-9 * tau


@pytest.mark.parametrize("tau", TAUS)
def test_the_products_are_those_of_the_coefficients(name, tau, make):
    """They are summed up step by step, whatever stands for the kernel."""
    _, precision, arguments = make(name=name)
    found = softmax_map(*arguments, tau)
    expected = precision.prior_product(found.values)
    torch.testing.assert_close(found.products, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("text", [0.0, 2.0])
def test_a_narrow_prior_is_one_step_of_regression(text, make):
    """A/τ → Y − softmax(offset), with an error in proportion to τ: ½ |K A| ≤ τ n."""
    _, _, (product, offset, targets) = make(text=text)
    limit = targets - offset.softmax(-1)
    errors = []
    for tau in (1e-2, 1e-4, 1e-6, 1e-8):
        found = softmax_map(product, offset, targets, tau)
        errors.append((found.values / tau - limit).abs().max().item())
        # The tolerance, and what the weakest direction of the kernel (λ > 0.05) makes of it.
        assert errors[-1] <= tau * len(targets) + 1e-4
    assert errors[0] > errors[1] > errors[2]


def test_a_wider_prior_fits_the_shots_better(make):
    _, _, (product, offset, targets) = make()
    losses = []
    for tau in (1e-3, *TAUS, 1e5):
        found = softmax_map(product, offset, targets, tau)
        losses.append(-(targets * log_softmax(offset + found.products, -1)).sum().item())
    assert all(one > other for one, other in itertools.pairwise(losses))
    assert losses[-1] < 1e-2


def test_a_search_at_a_narrow_prior_sees_a_cache(make):
    """The coarse tolerance is relative to a solution that shrinks with τ: 10 % of it at most."""
    for tau in (1e-3, 1e-2, 3e-2, 0.1, 0.3):
        _, _, arguments = make()
        exact = softmax_map(*arguments, tau).products
        coarse = softmax_map(*arguments, tau, tolerance=softmax.SEARCH_TOLERANCE).products
        assert (coarse - exact).norm() < 0.1 * exact.norm()


# What the arguments mean.


def test_a_constant_of_a_row_of_text_changes_nothing(make):
    problem, precision, (product, offset, targets) = make()
    shift = torch.linspace(-50, 50, len(offset)).to(offset)[:, None]
    found, shifted = (softmax_map(product, o, targets, 30.0) for o in (offset, offset + shift))
    torch.testing.assert_close(found.values, shifted.values, rtol=0, atol=1e-4)
    one, other = (probabilities(precision, problem, f) for f in (found, shifted))
    np.testing.assert_allclose(one, other, **CLOSE)


def test_order_of_rows_and_classes_does_not_matter(make):
    _, precision, (product, offset, targets) = make()
    found = softmax_map(product, offset, targets, 30.0)
    generator = torch.Generator().manual_seed(1)
    rows = torch.randperm(len(targets), generator=generator).to(targets.device)
    classes = torch.randperm(targets.shape[1], generator=generator).to(targets.device)
    prior = precision.prior[rows[:, None], rows]
    moved = softmax_map(
        prior.matmul, offset[rows][:, classes], targets[rows][:, classes], 30.0
    ).products
    expected = found.products[rows][:, classes]
    torch.testing.assert_close(moved, expected, rtol=0, atol=1e-5)


def test_a_row_of_zeros_is_left_out(make):
    _, precision, (product, offset, targets) = make()
    kept = torch.ones(len(targets), dtype=torch.bool, device=targets.device)
    kept[[0, 5, 6, 20]] = False
    masked = softmax_map(product, offset, targets * kept[:, None], 30.0)
    assert (masked.values[~kept] == 0).all()
    alone = softmax_map(precision.prior[kept][:, kept].matmul, offset[kept], targets[kept], 30.0)
    torch.testing.assert_close(masked.products[kept], alone.products, rtol=0, atol=5e-6)
    # What the text says at such a row does not count either.
    offset[~kept] = 100.0
    elsewhere = softmax_map(product, offset, targets * kept[:, None], 30.0)
    torch.testing.assert_close(elsewhere.values, masked.values, rtol=0, atol=1e-4)


@pytest.mark.parametrize("tau", TAUS)
def test_rows_may_count_less_or_more(tau, make, tools):
    """As scikit-learn's do: a row of targets sums to how much it counts."""
    problem, precision, (product, offset, targets) = make(text=0.0)
    counts = np.random.default_rng(6).uniform(0, 1.5, len(targets))
    counts[:3] = 0
    weighted = targets * torch.as_tensor(counts).to(targets)[:, None]
    found = probabilities(precision, problem, softmax_map(product, offset, weighted, tau))
    expected = logistic_regression(tools, problem, tau, counts)
    np.testing.assert_allclose(found, expected, **CLOSE)


def test_a_class_at_minus_infinity_takes_no_part(make, tools):
    problem, precision, (product, offset, targets) = make(shots=(4, 3, 0, 5, 0, 6))
    absent = targets.sum(0) == 0
    masked = softmax_map(product, offset.masked_fill(absent, -torch.inf), targets, 30.0)
    assert (masked.values[:, absent] == 0).all()
    few = softmax_map(product, offset[:, ~absent], targets[:, ~absent], 30.0)
    torch.testing.assert_close(masked.products[:, ~absent], few.products, rtol=0, atol=5e-6)
    # Unmasked, a class without a shot is pushed down by all the others.
    open_to_all = softmax_map(product, offset, targets, 30.0)
    assert open_to_all.values[:, absent].max() < 0
    # Without text the masked problem is the one that scikit-learn sees.
    zeros = torch.zeros_like(offset).masked_fill(absent, -torch.inf)
    logits = answers(precision, problem, softmax_map(product, zeros, targets, 30.0))
    found = tools.numpy64(logits[:, ~absent].softmax(-1))
    np.testing.assert_allclose(found, logistic_regression(tools, problem, 30.0), **CLOSE)


@pytest.mark.parametrize("tau", TAUS)
def test_batched_problems_are_single_ones(tau, make):
    """Problems that are solved early wait for the others."""
    found = [make(seed=seed, beta=beta) for seed, beta in ((0, 2.0), (1, 0.2), (2, 20.0))]
    priors = torch.stack([precision.prior for _, precision, _ in found])
    offsets, targets = (torch.stack([arguments[i] for _, _, arguments in found]) for i in (1, 2))
    targets[1, 4:9] = 0
    batch = softmax_map(priors.matmul, offsets, targets, tau)
    iterations = []
    for i, prior in enumerate(priors):
        alone = softmax_map(prior.matmul, offsets[i], targets[i], tau)
        torch.testing.assert_close(batch.products[i], alone.products, rtol=0, atol=5e-6)
        torch.testing.assert_close(
            (offsets[i] + batch.products[i]).softmax(-1),
            (offsets[i] + alone.products).softmax(-1),
            **CLOSE,
        )
        iterations.append(alone.iterations)
    assert tau < 1 or max(iterations) > min(iterations)  # one of them did wait


def test_a_problem_that_is_solved_stays_where_it_is(make):
    _, precision, (product, offset, targets) = make()
    solved = softmax_map(product, offset, targets, 30.0)
    pair = offset.expand(2, -1, -1), targets.expand(2, -1, -1)
    start = Coefficients(*(torch.stack([one, 0 * one]) for one in solved[:2]))
    found = softmax_map(precision.prior.matmul, *pair, 30.0, start=start)
    assert found.iterations > 5  # of the other one
    assert torch.equal(found.values[0], solved.values)
    torch.testing.assert_close(found.products[1], solved.products, rtol=0, atol=5e-6)


def test_several_leading_dimensions(make):
    _, precision, (product, offset, targets) = make()
    single = softmax_map(product, offset, targets, 1.0)
    many = softmax_map(
        precision.prior.matmul, offset.expand(2, 3, -1, -1), targets.expand(2, 3, -1, -1), 1.0
    )
    assert many.values.shape == (2, 3, *targets.shape)
    expected = single.products.expand(2, 3, -1, -1)
    torch.testing.assert_close(many.products, expected, rtol=0, atol=5e-6)


@pytest.mark.parametrize("tau", TAUS)
def test_a_warm_start_and_a_cold_one_agree(tau, make):
    _, precision, (product, offset, targets) = make()
    cold = softmax_map(product, offset, targets, tau)
    generator = torch.Generator().manual_seed(2)
    draw = torch.randn(targets.shape, generator=generator).to(targets)
    other = softmax_map(product, offset.flip(0), targets, 3 * tau).values
    for values in (10 * draw, other, cold.values):
        start = Coefficients(values, precision.prior @ values)
        warm = softmax_map(product, offset, targets, tau, start=start)
        torch.testing.assert_close(
            (offset + warm.products).softmax(-1), (offset + cold.products).softmax(-1), **CLOSE
        )
    assert warm.iterations == 0  # the solution itself is one
    assert torch.equal(warm.values, cold.values)


def test_a_start_near_by_takes_fewer_iterations(make):
    _, _, (product, offset, targets) = make(beta=0.5)
    cold = softmax_map(product, offset, targets, 1000.0)
    near = softmax_map(product, offset, targets, 999.0)
    warm = softmax_map(product, offset, targets, 1000.0, start=near)
    assert warm.iterations < cold.iterations / 2


@pytest.mark.parametrize("tau", [1.0, 30.0])
def test_some_rows_are_solved_and_the_others_stay(tau, make):
    _, precision, (product, offset, targets) = make(shots=EQUAL)
    given = softmax_map(product, offset, targets, tau / 10).values
    rows = torch.tensor([3, 0, 11, 20], device=given.device)
    found = solve_rows(precision.prior, offset, targets, tau, given, rows)
    stay = torch.ones(len(given), dtype=torch.bool).index_fill(0, rows.cpu(), False)
    assert torch.equal(found[stay], given[stay])
    # At their optimum these rows have A = τ (Y − softmax(f)); the others do not.
    gap = found - tau * (targets - (offset + product(found)).softmax(-1))
    assert float(gap[rows].norm()) < 1e-2
    assert float(gap[stay].norm()) > 0.1


def test_solving_the_rows_near_a_removed_one_first_saves_iterations(make):
    _, precision, (product, offset, targets) = make(shots=(40,) * 6)
    fitted = softmax_map(product, offset, targets, 30.0)
    gone = targets.clone()
    gone[0] = 0
    values = fitted.values.index_fill(0, torch.tensor([0], device=targets.device), 0.0)
    near = precision.prior[0].topk(65).indices[1:]  # without itself
    better = solve_rows(precision.prior, offset, gone, 30.0, values, near)
    iterations = [
        softmax_map(product, offset, gone, 30.0, start=Coefficients(a, product(a))).iterations
        for a in (values, better)
    ]
    assert iterations[1] < iterations[0]


def test_the_arguments_are_left_as_they_were(make):
    _, _, (product, offset, targets) = make()
    start = softmax_map(product, offset, targets, 3.0)
    given = (offset, targets, *start[:2])
    before = [tensor.clone() for tensor in given]
    softmax_map(product, offset, targets, 30.0, start=start)
    sets = torch.arange(len(targets), device=targets.device) % 3
    leave_out(product, offset, targets, 3.0, start, sets)
    for tensor, copy in zip(given, before, strict=True):
        assert torch.equal(tensor, copy)


def test_copies_of_a_row_answer_alike(make):
    """The kernel is singular: the optimum is not unique in A, but it is in what it answers."""
    _, precision, (_, offset, targets) = make()
    twice = torch.arange(len(targets)).repeat(2)
    prior = precision.prior[twice[:, None], twice]
    found = softmax_map(prior.matmul, offset[twice], targets[twice], 30.0).products
    once = softmax_map(precision.prior_product, offset, targets, 60.0).products
    torch.testing.assert_close(found[: len(once)], found[len(once) :], rtol=0, atol=1e-9)
    # Two copies of every shot count as one shot under a prior twice as wide: ½ tr/τ of both.
    expected = softmax_map((2 * precision.prior).matmul, offset, targets, 30.0).products
    torch.testing.assert_close(found[: len(once)], expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(found[: len(once)], once, rtol=0, atol=1e-5)


def test_one_class_leaves_nothing_to_say(make):
    _, _, arguments = make(shots=(6,))
    found = softmax_map(*arguments, 30.0)
    assert (found.values == 0).all()
    assert (found.products == 0).all()


def test_one_shot_of_each_class(make):
    problem, _, (product, _, targets) = make(shots=(1, 1, 1, 1))
    found = softmax_map(product, torch.zeros_like(targets), targets, 1000.0)
    assert (found.products.argmax(1) == problem.labels).all()


def test_labels_against_the_text_and_large_logits(make):
    """CLIP's logits are large: 100 · cosine. Where labels contradict them nothing overflows."""
    problem, _, (product, offset, targets) = make()
    wrong = 100.0 * one_hot((problem.labels + 1) % 6, 6).to(offset)
    for tau in (1.0, 1000.0):
        found = softmax_map(product, wrong, targets, tau)
        assert found.values.isfinite().all()
        gap = found.values - tau * (targets - (wrong + found.products).softmax(-1))
        assert (gap * product(gap)).sum().sqrt() <= 5e-7 * targets.norm()


# Leaving out.

SETS = {
    "one by one": lambda labels: torch.arange(len(labels)),
    "folds of unequal size": lambda labels: (
        torch.randint(0, 6, (len(labels),), generator=torch.Generator().manual_seed(2)) * 10 - 7
    ),
    "whole classes": lambda labels: labels,
    "one large set, the others alone": lambda labels: torch.arange(len(labels)).clamp(min=11),
    "everything": lambda labels: torch.zeros(len(labels), dtype=torch.long),
}


@pytest.mark.parametrize("sets", SETS.values(), ids=SETS)
@pytest.mark.parametrize("tau", [1.0, 100.0])
def test_leave_out_is_what_refits_say(tau, sets, make):
    problem, precision, (product, offset, targets) = make()
    sets = sets(problem.labels.cpu()).to(targets.device)
    fitted = softmax_map(product, offset, targets, tau)
    found = leave_out(product, offset, targets, tau, fitted, sets)
    for number in sets.unique():
        gone = sets == number
        kept = ~gone
        expected = torch.zeros_like(targets[gone])
        if kept.any():
            refit = softmax_map(
                precision.prior[kept][:, kept].matmul, offset[kept], targets[kept], tau
            )
            expected = precision.prior[gone][:, kept] @ refit.values
        torch.testing.assert_close(
            (offset[gone] + found[gone]).softmax(-1), (offset[gone] + expected).softmax(-1), **CLOSE
        )
    # A row that was seen is answered otherwise.
    assert (found - fitted.products).abs().max() > 0.1


def test_sets_are_left_out_in_batches_of_any_size(make, monkeypatch):
    _, _, (product, offset, targets) = make()
    fitted = softmax_map(product, offset, targets, 30.0)
    sets = torch.arange(len(targets), device=targets.device) // 3
    expected = leave_out(product, offset, targets, 30.0, fitted, sets)
    for elements in (1, 8 * targets.numel() * 4):
        monkeypatch.setattr(softmax, "BATCH_ELEMENTS", elements)
        found = leave_out(product, offset, targets, 30.0, fitted, sets)
        torch.testing.assert_close(found.softmax(-1), expected.softmax(-1), **CLOSE)


# Numbers that do not suffice.


@pytest.mark.parametrize(
    ("tau", "allowed"), [(0.01, 1e-4), (30.0, SINGLE[30.0]), (1e4, SINGLE[1e4]), (3e5, SINGLE[3e5])]
)
@pytest.mark.parametrize("beta", [0.5, 2.0])
def test_float32_against_float64(beta, tau, allowed, make):
    """To the digits that the module states; also where τ is beyond what its tolerance can have."""
    found = []
    for dtype in (torch.float64, torch.float32):
        problem, precision, arguments = make(beta=beta, dtype=dtype, text=0.5)
        solved = softmax_map(*arguments, tau)
        assert solved.values.dtype == solved.products.dtype == dtype
        found.append(probabilities(precision, problem, solved))
    assert 0 < np.abs(found[0] - found[1]).max() < allowed


def test_float32_of_more_shots_at_the_end_of_the_search(make):
    """n = 200, c = 10 at the widest prior that the search looks at."""
    _, _, arguments = make(shots=(20,) * 10, width=64, beta=0.5, dtype=torch.float32)
    for tolerance in (None, softmax.SEARCH_TOLERANCE):
        found = softmax_map(*arguments, 2e4, tolerance=tolerance)
        assert found.values.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_too_few_iterations_are_an_error(dtype, make):
    _, _, arguments = make(dtype=dtype)
    needed = softmax_map(*arguments, 30.0).iterations
    assert needed > 5
    with pytest.raises(NumericalError, match="did not converge in 5 iterations") as error:
        softmax_map(*arguments, 30.0, max_iterations=5)
    assert "lower tau" in str(error.value)
    assert "\n" not in str(error.value)
    softmax_map(*arguments, 30.0, max_iterations=needed + 1)


def test_one_problem_of_a_batch_that_does_not_converge_is_an_error(make):
    _, precision, (_, offset, targets) = make()
    easy = softmax_map((0.01 * precision.prior).matmul, offset, targets, 30.0).iterations
    priors = torch.stack([0.01 * precision.prior, precision.prior])
    pair = offset.expand(2, -1, -1), targets.expand(2, -1, -1)
    with pytest.raises(NumericalError, match="did not converge"):
        softmax_map(priors.matmul, *pair, 30.0, max_iterations=easy + 1)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("place", ["kernel", "text", "labels", "start"])
def test_a_number_that_is_not_finite_is_an_error(place, bad, make):
    _, precision, (_, offset, targets) = make()
    prior, start = precision.prior.clone(), None
    if place == "start":
        values = torch.zeros_like(targets)
        values[2, 1] = bad
        start = Coefficients(values, prior @ values)
    else:
        {"kernel": prior, "text": offset, "labels": targets}[place][2, 1] = bad
    with pytest.raises(NumericalError, match="not finite") as error:
        softmax_map(prior.matmul, offset, targets, 30.0, start=start)
    assert "\n" not in str(error.value)


# Every approximation.


def dense_priors(tools, name, problem, plan, points):
    """(c, m, n): for each class the covariance of points and keys, with explicit inverses.

    Without points it is the one that the keys are fitted with. It differs from that of points at
    the same places in two approximations: a class is fitted on the keys of its group alone, and a
    key is fitted as if it were the mean of its class.
    """
    fitted = points is None
    points = problem.keys if fitted else points
    keys, labels = problem.keys, problem.labels.cpu().numpy()
    beta, kind = problem.beta, name.split("-")[0]
    if kind in ("exact", "unweighted", "grouped"):
        found = prior_covariance(tools, points, keys, beta)
    elif kind == "nystrom":
        landmarks = keys[plan.rows]
        core = prior_covariance(tools, landmarks, landmarks, beta)
        core += np.sqrt(np.finfo(np.float64).eps) * np.eye(len(core))
        left, right = (prior_covariance(tools, x, landmarks, beta) for x in (points, keys))
        found = left @ np.linalg.inv(core) @ right.T
    elif kind == "fourier":
        draws = plan.draws.cpu().numpy() * np.sqrt(beta)
        phases = [tools.numpy64(x) @ draws for x in (points, keys)]
        found = np.cos(phases[0][:, None] - phases[1][None]).mean(-1)
    else:
        members = labels[:, None] == np.unique(labels)[None, :]
        centres = members.T @ tools.numpy64(keys)
        centres /= np.linalg.norm(centres, axis=1, keepdims=True)
        mean_of_shot = torch.as_tensor(centres[members.argmax(1)])
        at = mean_of_shot if fitted else points
        found = prior_covariance(tools, at, mean_of_shot, beta)
    priors = np.stack([found] * problem.n_classes)
    if kind == "grouped":
        group = plan.class_group.cpu().numpy()
        inside = group[labels][None, :] == group[:, None]  # (c, n)
        priors *= inside[:, None, :]
        if fitted:
            priors *= inside[:, :, None]
    return priors


def lost_digits(dtype):
    """The core of Nyström has a condition of 1e6 at small β."""
    return 1e-7 if dtype == torch.float64 else 1e-4


@pytest.mark.parametrize("beta", [0.3, 2.0])
def test_products_are_those_of_the_dense_prior(name, beta, dtype, device, tools):
    problem = tools.make_problem(device=device, dtype=dtype, beta=beta)
    precision = tools.build(name, problem)
    right = tools.numpy64(problem.values)

    def expected(points):
        priors = dense_priors(tools, name, problem, precision._plan, points)
        return np.einsum("cmn,nc->mc", priors, right)

    found = precision.prior_product(problem.values)
    tools.close(found, expected(None), atol=lost_digits(dtype))
    for points in (problem.keys, problem.queries):
        rows = precision.prior_rows(points)
        assert rows.shape == (len(points), len(problem.keys))
        found = rows @ precision.prior_coefficients(problem.values)
        tools.close(found, expected(points), atol=lost_digits(dtype))


@pytest.mark.parametrize("name", ["exact", "nystrom-exact", "nystrom-consistent", "fourier-exact"])
def test_keys_are_answered_as_they_were_fitted(name, problem, tools):
    """Whatever `cross` is: the rows of the keys times the coefficients are the product."""
    precision = tools.build(name, problem)
    again = precision.prior_rows(problem.keys) @ precision.prior_coefficients(problem.values)
    tools.close(again, precision.prior_product(problem.values))


def test_the_product_is_symmetric_and_not_negative(name, problem64, tools):
    product = tools.build(name, problem64).prior_product
    generator = torch.Generator().manual_seed(4)
    for _ in range(5):
        u, v = (
            torch.randn(problem64.values.shape, generator=generator).to(problem64.values)
            for _ in range(2)
        )
        tools.close((u * product(v)).sum(), (v * product(u)).sum(), rtol=1e-8)
        assert (u * product(u)).sum() >= 0


def test_the_product_takes_batches_and_keeps_dtype_and_input(name, problem, tools):
    precision = tools.build(name, problem)
    right = torch.stack([problem.values, 2 * problem.values, problem.values.flip(0)])
    before = right.clone()
    found = precision.prior_product(right)
    assert found.dtype == precision.prior_rows(problem.queries).dtype == problem.keys.dtype
    assert torch.equal(right, before)
    for one, alone in zip(found, right, strict=True):
        tools.close(one, precision.prior_product(alone))


@pytest.mark.parametrize("tau", [1.0, 100.0])
def test_the_optimum_is_that_of_the_dense_prior(name, tau, tools, make):
    """f = K τ (Y − softmax(f)) for every approximation, K in its dense form; logits to 2e-5."""
    problem, precision, (product, offset, targets) = make(name=name)
    found = softmax_map(product, offset, targets, tau)
    priors = dense_priors(tools, name, problem, precision._plan, None)
    residual = targets - (offset + found.products).softmax(-1)
    expected = np.einsum("cmn,nc->mc", priors, tau * tools.numpy64(residual))
    np.testing.assert_allclose(tools.numpy64(found.products), expected, rtol=0, atol=2e-5)


def close_to_exact(make, name, tau, allowed, *, shots=UNEQUAL, **options):
    found = []
    for kind, given in (("exact", {}), (name, options)):
        problem, precision, arguments = make(name=kind, shots=shots, options=given)
        found.append(probabilities(precision, problem, softmax_map(*arguments, tau)))
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=allowed)


@pytest.mark.parametrize("tau", TAUS)
class TestWhereAnApproximationIsExact:
    @pytest.mark.parametrize("reading", ["exact", "consistent"])
    def test_nystrom_with_every_key_a_landmark(self, reading, tau, make):
        close_to_exact(make, f"nystrom-{reading}", tau, 1e-5, n_landmarks=9 * 6)

    def test_one_group(self, tau, make):
        close_to_exact(make, "grouped", tau, 1e-6, n_groups=1)

    def test_class_means_of_one_shot_each(self, tau, make):
        close_to_exact(make, "class_mean", tau, 1e-6, shots=(1,) * 6)


@pytest.mark.parametrize("name", ["grouped", "nystrom-exact", "fourier-exact", "class_mean"])
def test_otherwise_an_approximation_differs(name, make):
    with pytest.raises(AssertionError):
        close_to_exact(make, name, 30.0, 1e-3)


@pytest.mark.parametrize("tau", [1.0, 30.0])
def test_many_fourier_features_come_near_exact(tau, make):
    """A thousand frequencies know κ to 1/√1000 = 0.03, twenty to seven times as much."""
    problem, precision, arguments = make()
    exact = probabilities(precision, problem, softmax_map(*arguments, tau))
    errors = []
    for n_features in (40, 2000):
        problem, precision, arguments = make(
            name="fourier-consistent", options={"n_features": n_features}
        )
        found = probabilities(precision, problem, softmax_map(*arguments, tau))
        errors.append(np.abs(found - exact).max())
    assert errors[1] < 0.1
    assert errors[1] < errors[0] / 3


@pytest.mark.parametrize("tau", TAUS)
def test_a_rough_product_changes_nothing_but_the_time(tau, make):
    """Neither float32 nor a product that is wrong by a hundredth moves the optimum."""
    _, precision, (product, offset, targets) = make()
    exact = (offset + softmax_map(product, offset, targets, tau).products).softmax(-1)
    single = precision.prior.float()
    for rough in (single, 1.01 * single):
        found = softmax_map(product, offset, targets, tau, rough=rough.matmul)
        torch.testing.assert_close((offset + found.products).softmax(-1), exact, **CLOSE)
        torch.testing.assert_close(found.products, precision.prior @ found.values)


@pytest.mark.parametrize("share", [1.001, 1.5, -30.0])
def test_a_rough_product_goes_on_from_any_start(share, make):
    """Near the optimum probabilities change by growth factors, which end at zero far from it."""
    _, precision, (product, offset, targets) = make()
    exact = softmax_map(product, offset, targets, 30.0)
    values = share * exact.values
    start = Coefficients(values, product(values))
    if share < 0:  # some probabilities are zero in float32, where they end near one
        there = (offset + start.products).softmax(-1).float()
        assert float(there[targets > 0].min()) == 0
    rough = precision.prior.float().matmul
    found = softmax_map(product, offset, targets, 30.0, start=start, rough=rough)
    expected = (offset + exact.products).softmax(-1)
    torch.testing.assert_close((offset + found.products).softmax(-1), expected, **CLOSE)


@pytest.mark.parametrize("seed", range(4))
def test_directions_in_float32_converge_at_a_wide_prior(seed, make):
    """Near the optimum float32 sees no change of the probabilities: steps must not grow."""
    _, precision, (product, offset, targets) = make(shots=(10,) * 12, text=0.0, seed=seed)
    single = precision.prior.float()
    exact = softmax_map(product, offset, targets, 200.0)
    found = softmax_map(product, offset, targets, 200.0, rough=single.matmul)
    assert found.iterations < 3 * exact.iterations
