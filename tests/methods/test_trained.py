"""Trained keys: the loop against plain autograd, step 0, and what may move."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, normalize, one_hot

from gpcache import GPCacheClassifier, GPCacheFClassifier, NumericalError, ProtocolError
from gpcache.methods import TipAdapterClassifier, TipAdapterFClassifier, restore, state_of
from gpcache.methods.tip_adapter import START_ALPHA, START_BETA
from gpcache.metrics import fit_temperature

ALPHA, BETA, NOISE, GAIN = 3.0, 2.5, 0.2, 0.8
TIP = {"alpha": ALPHA, "beta": BETA, "gain": GAIN}
GP = TIP | {"noise": NOISE}


def regression(**options):
    """GPCache as its trained variant starts: trained keys have no other likelihood."""
    return GPCacheClassifier.from_options(likelihood="gaussian", **options)


@pytest.fixture
def views(problem):
    draw = np.random.default_rng(8).normal(size=(len(problem.X), 3, 12))
    return problem.X[:, None] + 0.3 * draw


def trained_by_hand(
    problem, tools, *, epochs, eta=None, space="raw", precision_gradient=True, views=None
):
    """Logits after full-batch AdamW (ε 1e-4) with a cosine per step, by plain autograd.

    With η, GPCache-F: F moves and φ keeps it on the sphere. Without, Tip-Adapter-F: F is free.
    """
    classes = np.sort(problem.prior.class_names)
    labels = torch.tensor(np.searchsorted(classes, problem.y))
    text = torch.tensor(tools.zero_shot(problem.prior, problem.X))
    values = one_hot(labels, 5).double()
    targets = torch.tensor(tools.residual(problem.y, classes, GAIN * text.numpy()))
    mean, root = (torch.tensor(a) for a in tools.whitening(tools.unit(problem.X), problem.y))

    def phi(rows):
        rows = rows if space == "raw" else rows - mean
        return normalize(rows @ root if space == "whitened" else rows)

    def logits(queries, zero_shot, parameter):
        if eta is None:
            cache = torch.exp(-BETA * (1 - phi(queries) @ parameter.T)) @ values
            return GAIN * zero_shot + ALPHA * cache
        keys = phi(parameter)
        cross = torch.exp(-BETA * (1 - phi(queries) @ keys.T))
        covariance = torch.exp(-BETA * (1 - keys @ keys.T)) + NOISE * torch.eye(len(keys))
        inverse = torch.linalg.inv(covariance if precision_gradient else covariance.detach())
        variance = 1 - ((cross @ inverse) * cross).sum(1, keepdim=True)
        cache = cross @ inverse @ targets / variance**eta
        return GAIN * zero_shot + ALPHA * cache

    rows = torch.tensor(tools.unit(problem.X))
    asked, wanted = rows, labels
    if views is not None:
        together = np.concatenate([problem.X[:, None], views], 1).reshape(-1, 12)
        asked, wanted = torch.tensor(tools.unit(together)), labels.repeat_interleave(4)
    asked_text = torch.tensor(tools.zero_shot(problem.prior, asked.numpy()))
    parameter = (phi(rows) if eta is None else rows).clone().requires_grad_()
    optimiser = torch.optim.AdamW([parameter], lr=0.05, eps=1e-4, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)
    losses = []
    for _ in range(epochs):
        loss = cross_entropy(logits(asked, asked_text, parameter), wanted)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        losses.append(loss.item())
    queries = torch.tensor(tools.unit(problem.queries))
    query_text = torch.tensor(tools.zero_shot(problem.prior, problem.queries))
    return logits(queries, query_text, parameter).detach().numpy(), losses


def fitted(kind, problem, tools, *, views=None, **options):
    numbers = GP if kind is GPCacheFClassifier else TIP
    given = {"learning_rate": 0.05, "epsilon": 1e-4, "stopping": "last", "kernel_space": "raw"}
    options = given | numbers | tools.float64 | options
    return kind.from_options(text_prior=problem.prior, **options).fit(
        problem.X, problem.y, views=views
    )


# Not whitened: its free keys live in a basis of that space, and AdamW knows one basis from another.
@pytest.mark.parametrize("space", ["raw", "centred"])
@pytest.mark.parametrize("with_views", [False, True])
def test_tip_adapter_f_is_plain_autograd(space, with_views, problem, tools, views):
    views = views if with_views else None
    estimator = fitted(
        TipAdapterFClassifier, problem, tools, kernel_space=space, epochs=4, views=views
    )
    logits, losses = trained_by_hand(problem, tools, epochs=4, space=space, views=views)
    np.testing.assert_allclose(estimator.training_loss_, losses, rtol=1e-8)
    np.testing.assert_allclose(estimator.logits(problem.queries), logits, rtol=1e-6)


@pytest.mark.parametrize("space", ["raw", "whitened"])
@pytest.mark.parametrize("precision_gradient", [True, False])
@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_gpcache_f_is_plain_autograd(space, precision_gradient, eta, problem, tools):
    options = {"space": space, "precision_gradient": precision_gradient, "eta": eta}
    logits, losses = trained_by_hand(problem, tools, epochs=4, **options)
    options["kernel_space"] = options.pop("space")
    estimator = fitted(
        GPCacheFClassifier, problem, tools, epochs=4, confidence_scaling=True, **options
    )
    np.testing.assert_allclose(estimator.training_loss_, losses, rtol=1e-6)
    np.testing.assert_allclose(estimator.logits(problem.queries), logits, rtol=1e-5)


def test_gpcache_f_learns_from_views_by_plain_autograd(problem, tools, views):
    logits, _ = trained_by_hand(problem, tools, epochs=3, eta=0.0, views=views)
    estimator = fitted(GPCacheFClassifier, problem, tools, epochs=3, views=views)
    np.testing.assert_allclose(estimator.logits(problem.queries), logits, rtol=1e-5)
    without = fitted(GPCacheFClassifier, problem, tools, epochs=3).logits(problem.queries)
    assert np.abs(without - logits).max() > 1e-3


def test_views_that_are_the_shots_themselves_add_nothing(problem, tools):
    copies = np.repeat(problem.X[:, None], 2, axis=1)
    for kind in (TipAdapterFClassifier, GPCacheFClassifier):
        one = fitted(kind, problem, tools, epochs=3)
        same = fitted(kind, problem, tools, epochs=3, views=copies)
        np.testing.assert_allclose(
            same.logits(problem.queries), one.logits(problem.queries), rtol=1e-8
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_views_may_be_a_tensor_of_any_float(dtype, problem, tools, views):
    tensor = torch.tensor(views).to(dtype).requires_grad_()
    rounded = tensor.detach().double().numpy()
    found, expected = (
        fitted(GPCacheFClassifier, problem, tools, epochs=2, views=v).logits(problem.queries)
        for v in (tensor, rounded)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_the_precision_gradient_matters(problem, tools, precision):
    if not precision.get("precision_weighting", True):
        pytest.skip("a plain sum has no precision")
    on, off = (
        fitted(GPCacheFClassifier, problem, tools, epochs=4, precision_gradient=g, **precision)
        for g in (True, False)
    )
    assert np.abs(on.logits(problem.queries) - off.logits(problem.queries)).max() > 1e-4


@pytest.mark.parametrize("selection", ["given", "auto"])
@pytest.mark.parametrize(
    ("trained", "parent"),
    [(GPCacheFClassifier, regression), (TipAdapterFClassifier, TipAdapterClassifier)],
)
def test_at_step_zero_it_is_its_parent(selection, trained, parent, problem, tools):
    """In folds of the shots: a parent in raw space would leave them out one by one."""
    numbers = {} if selection == "auto" else {"alpha": 2.0, "beta": 4.0}
    options = {"text_prior": problem.prior, "selection": "folds", "n_folds": 4}
    options |= numbers | tools.float64
    still = trained.from_options(epochs=0, **options).fit(problem.X, problem.y)
    free = getattr(parent, "from_options", parent)(**options).fit(problem.X, problem.y)
    for name in ("alpha_", "beta_", "noise_", "eta_", "gain_", "temperature_"):
        assert getattr(still, name) == pytest.approx(getattr(free, name), rel=1e-9), name
    np.testing.assert_allclose(
        still.logits(problem.queries), free.logits(problem.queries), rtol=1e-9
    )
    np.testing.assert_allclose(still.loo_.logits, free.loo_.logits, rtol=1e-9)
    assert still.training_loss_ == []


def test_updates_keep_the_views(problem, tools):
    """`loo_` trains anew, and must train on what the fit trained on."""
    views = np.repeat(problem.X[:, None], 2, axis=1) * [[[1.0], [2.0]]]
    model = GPCacheFClassifier.from_options(epochs=1, kernel_space="raw", **tools.float64)
    model.fit(problem.X, problem.y, views=views)
    before = model.fitted_.shots.views
    model.relabel([0], [problem.y[-1]])
    np.testing.assert_array_equal(model.fitted_.shots.views, before)
    model.add(problem.X[:1], ["beech"])
    assert model.fitted_.shots.views.shape == (len(problem.X) + 1, 2, problem.X.shape[1])


def test_the_numbers_are_those_of_the_training_free_model(problem, tools):
    """Choosing comes before training, so leave-one-out may choose; only the report needs folds."""
    options = {"text_prior": problem.prior, "kernel_space": "raw", **tools.float64}
    moved = GPCacheFClassifier.from_options(epochs=2, **options).fit(problem.X, problem.y)
    free = regression(**options).fit(problem.X, problem.y)
    for name in ("alpha_", "beta_", "noise_", "gain_"):
        assert getattr(moved, name) == getattr(free, name), name
    assert free.loo_.protocol == "leave-one-out"
    assert "4-fold" in moved.loo_.protocol
    assert "were chosen on all shots" in moved.loo_.protocol  # the report is not nested for them


def test_tip_adapter_f_trains_at_its_own_first_numbers_and_weighs_the_cache_afterwards(tools):
    """The kernel that suits untrained shots would leave its keys nothing to learn."""
    problem = tools.make_problem(shots=(4, 5, 4, 6, 3))
    options = {"text_prior": problem.prior, "epochs": 3, "stopping": "last", **tools.float64}
    model = TipAdapterFClassifier.from_options(**options).fit(problem.X, problem.y)
    given = {"alpha": START_ALPHA, "beta": START_BETA}
    start = TipAdapterFClassifier.from_options(**(options | given)).fit(problem.X, problem.y)
    assert model.beta_ == START_BETA
    np.testing.assert_array_equal(model.training_loss_, start.training_loss_)
    assert model.alpha_ != START_ALPHA
    counted, labels = model.loo_.counted, model.loo_.labels[model.loo_.counted]
    text = tools.zero_shot(problem.prior, problem.X[counted])
    votes = model.loo_.logits[counted] - text
    below, here, above = (
        tools.smoothed_nll(text + factor * votes, labels) for factor in (0.9, 1, 1.1)
    )
    assert here < below
    assert here < above


def test_what_it_was_trained_at_stays_whatever_comes_or_goes(problem, tools):
    """`loo_` trains anew, and must train as the fit did: the class that comes had text alone."""
    assert "yew" not in problem.y
    options = {"text_prior": problem.prior, "epochs": 2, **tools.float64}
    model = TipAdapterFClassifier.from_options(**options).fit(problem.X, problem.y)
    narrow = model.fitted_.training.trained_at
    assert narrow.beta != START_BETA
    model.add(problem.queries[:2], ["yew", "yew"])
    assert model.fitted_.training.trained_at == narrow
    state = state_of(model)
    assert restore(state).fitted_.training.trained_at == narrow
    del state.settings["trained_at"]
    assert restore(state).fitted_.training.trained_at == model.fitted_.choice


@pytest.mark.parametrize("kind", [TipAdapterFClassifier, GPCacheFClassifier])
def test_folds_train_at_the_numbers_of_the_fit_not_at_those_found_afterwards(kind, problem, tools):
    rows = problem.X + 0.8 * np.random.default_rng(3).normal(size=problem.X.shape)
    options = {"epochs": 3, "stopping": "last", "learning_rate": 0.05, "kernel_space": "raw"}
    model = kind.from_options(**options, **tools.float64)
    model.fit(problem.X, problem.y, validation=(rows, problem.y))
    start, found = model.fitted_.training.trained_at, model.fitted_.choice
    assert (start.alpha, start.beta) != (found.alpha, found.beta)
    given = {"alpha": start.alpha, "beta": start.beta}
    if kind is GPCacheFClassifier:
        given |= {"noise": start.noise, "gain": start.gain}
    # The same folds trained at numbers that are given, then read at those that were found.
    other = kind.from_options(**(options | given), **tools.float64).fit(problem.X, problem.y)
    training = replace(other.fitted_.training, choice=found)
    report, _ = training.held_out(other.epochs_)
    np.testing.assert_allclose(model.held_out().logits, report.logits, rtol=1e-9)


@pytest.mark.parametrize("kind", [TipAdapterFClassifier, GPCacheFClassifier])
@pytest.mark.parametrize("criterion", ["nll", "accuracy"])
def test_each_stop_is_judged_at_its_own_best_numbers(kind, criterion, problem, tools, monkeypatch):
    """A validation set chooses the numbers of every stop before it compares them."""
    draw = np.random.default_rng(3).normal(size=(3, *problem.X.shape))
    rows, truth = (problem.X + 0.8 * draw).reshape(-1, 12), np.tile(problem.y, 3)
    options = {"text_prior": problem.prior, "epochs": 4, "learning_rate": 0.05}
    options |= {"criterion": criterion, "kernel_space": "raw"} | tools.float64
    model = kind.from_options(**options).fit(problem.X, problem.y, validation=(rows, truth))
    labels = np.searchsorted(model.classes_, truth)

    def loss(one):
        logits = one.logits(rows)
        temperature = fit_temperature(torch.tensor(logits), torch.tensor(labels))
        return tools.smoothed_nll(logits / float(temperature), labels)

    losses = {}
    for stop in range(5):
        # The same schedule, cut short: all numbers searched at that stop alone.
        one = kind.from_options(**options, stopping="last")
        trainer = replace(one._trainer(), stops=(stop,))
        monkeypatch.setattr(kind, "_trainer", lambda _, trainer=trainer: trainer)
        losses[stop] = loss(one.fit(problem.X, problem.y, validation=(rows, truth)))
    assert model.epochs_ == min(losses, key=losses.get)
    assert loss(model) == pytest.approx(losses[model.epochs_], rel=1e-9)
    assert len(model.training_loss_) == model.epochs_


@pytest.mark.parametrize("kind", [TipAdapterFClassifier, GPCacheFClassifier])
def test_training_lowers_the_loss_of_the_shots(kind, precision, problem, tools):
    options = precision if kind is GPCacheFClassifier else {}
    still, moved = (
        fitted(kind, problem, tools, epochs=epochs, batch_size=5, **options) for epochs in (0, 12)
    )
    labels = np.searchsorted(still.classes_, problem.y)
    before, after = (tools.nll(e.logits(problem.X), labels) for e in (still, moved))
    assert len(moved.training_loss_) == 12
    assert moved.training_loss_[-1] < moved.training_loss_[0]
    assert after < before


@pytest.mark.parametrize("kind", [TipAdapterFClassifier, GPCacheFClassifier])
def test_the_seed_decides_the_batches(kind, problem, tools):
    def logits(seed):
        estimator = fitted(kind, problem, tools, epochs=2, batch_size=4, random_state=seed)
        return estimator.logits(problem.queries)

    np.testing.assert_array_equal(logits(1), logits(1))
    assert np.abs(logits(1) - logits(2)).max() > 1e-6


def test_trained_keys_of_gpcache_stay_on_the_sphere_and_those_of_tip_adapter_do_not(problem, tools):
    for kind, on_sphere in ((GPCacheFClassifier, True), (TipAdapterFClassifier, False)):
        for space in ("raw", "whitened"):
            estimator = fitted(kind, problem, tools, epochs=3, kernel_space=space)
            lengths = estimator.fitted_.model.precision.keys.norm(dim=1).numpy()
            assert np.allclose(lengths, 1, atol=1e-12) == on_sphere, (kind, space)


def test_training_that_diverges_says_so(problem, tools):
    with pytest.raises(NumericalError, match=r"diverged in epoch \d+: lower the learning rate"):
        fitted(TipAdapterFClassifier, problem, tools, epochs=5, learning_rate=1e4, beta=60.0)


def test_without_calibration_the_temperature_is_the_training_free_one(problem, tools):
    for numbers in ({}, {"alpha": 2.0, "beta": 4.0, "noise": 0.5}):
        options = {"text_prior": problem.prior, **numbers, **tools.float64}
        training = {"epochs": 3, "learning_rate": 0.1, "stopping": "last"}
        quick = GPCacheFClassifier.from_options(calibrate=False, **training, **options)
        quick.fit(problem.X, problem.y)
        slow = GPCacheFClassifier.from_options(**training, **options).fit(problem.X, problem.y)
        free = regression(**options).fit(problem.X, problem.y)
        np.testing.assert_array_equal(quick.logits(problem.queries), slow.logits(problem.queries))
        assert slow.temperature_ != pytest.approx(free.temperature_)
        assert quick.temperature_ == pytest.approx(free.temperature_), numbers
        assert not quick.loo_.counted.any()
        np.testing.assert_array_equal(quick.held_out().logits, slow.loo_.logits)


# What may move, and on what loss.


def by_hand(problem, tools, *, trains, loss="plain", pull=0.0, views=None, epochs=3, rank=4):
    """GPCache-F's logits by plain autograd in raw space: a query's own key is left out by deleting
    it from every matrix."""
    classes = np.sort(problem.prior.class_names)
    labels = torch.tensor(np.searchsorted(classes, problem.y))
    rows = torch.tensor(tools.unit(problem.X))
    scale = problem.prior.logit_scale
    text = torch.tensor(problem.prior.aligned(classes))
    said = GAIN * tools.zero_shot(problem.prior, problem.X)
    values = torch.tensor(tools.residual(problem.y, classes, said))
    if trains == "metric":
        generator = torch.Generator().manual_seed(0)
        down = torch.randn(12, rank, generator=generator, dtype=torch.float64) / 12**0.5
        parameters = [down, torch.zeros(rank, 12, dtype=torch.float64)]
    elif trains == "classes":
        parameters = [torch.zeros(5, 12, dtype=torch.float64)]
    else:
        parameters = [rows.clone()]
    starts = [one.clone() for one in parameters]
    for one in parameters:
        one.requires_grad_()

    def phi(x):
        return normalize(x + x @ parameters[0] @ parameters[1]) if trains == "metric" else x

    def keys():
        if trains == "classes":
            return normalize(rows + parameters[0][labels])
        return phi(rows) if trains == "metric" else normalize(parameters[0])

    def said(x):
        moved = normalize(text + parameters[0]) if trains == "classes" else text
        return GAIN * scale * x @ moved.T

    def answer(x, kept):
        held = keys()[kept]
        cross = torch.exp(-BETA * (1 - phi(x) @ held.T))
        covariance = torch.exp(-BETA * (1 - held @ held.T)) + NOISE * torch.eye(len(held))
        return said(x) + ALPHA * cross @ torch.linalg.inv(covariance) @ values[kept]

    everyone = torch.arange(len(rows))
    own = everyone.repeat_interleave(1 if views is None else 1 + views.shape[1])
    asked = rows
    if views is not None:
        together = np.concatenate([problem.X[:, None], views], 1).reshape(-1, 12)
        asked = torch.tensor(tools.unit(together))
    optimiser = torch.optim.AdamW(parameters, lr=0.05, eps=1e-4, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)
    for _ in range(epochs):
        if loss == "plain":
            logits = answer(asked, everyone)
        else:
            logits = torch.cat(
                [answer(asked[i : i + 1], everyone[everyone != own[i]]) for i in range(len(asked))]
            )
        total = cross_entropy(logits, labels[own])
        away = sum((a - b).square().sum() for a, b in zip(parameters, starts, strict=True))
        optimiser.zero_grad()
        (total + pull * away / len(rows)).backward()
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        return answer(torch.tensor(tools.unit(problem.queries)), everyone).numpy()


@pytest.mark.parametrize("trains", ["keys", "metric", "classes"])
@pytest.mark.parametrize("loss", ["plain", "leave_one_out"])
@pytest.mark.parametrize("with_views", [False, True])
def test_every_way_of_training_is_plain_autograd(trains, loss, with_views, problem, tools, views):
    views = views if with_views else None
    options = {"trains": trains, "loss": loss, "pull": 0.7}
    expected = by_hand(problem, tools, views=views, **options)
    model = fitted(GPCacheFClassifier, problem, tools, epochs=3, rank=4, views=views, **options)
    np.testing.assert_allclose(model.logits(problem.queries), expected, rtol=1e-6, atol=1e-9)


def test_the_variance_without_the_own_key_is_that_of_a_model_without_it(problem, tools):
    """With η, the divisor too must not know the left-out key."""
    options = GP | tools.float64 | {"kernel_space": "raw", "text_prior": problem.prior}
    options |= {"confidence_scaling": True, "eta": 1.0, "selection": "folds"}
    whole = regression(**options).fit(problem.X, problem.y)
    rows = torch.tensor([0, 3, 7])
    queries = whole.fitted_.model.feature_map(whole.fitted_.shots.features[rows + 1])
    found = whole.fitted_.model.precision.posterior_without(queries, rows)
    for i, row in enumerate(rows.tolist()):
        without = whole.fitted_.model.precision.remove(torch.tensor([row]))
        expected = without.posterior(queries[i : i + 1])
        np.testing.assert_allclose(found.mean[i], expected.mean[0], rtol=1e-9)
        np.testing.assert_allclose(found.variance[i], expected.variance[0], rtol=1e-9)


def test_leave_one_out_training_needs_the_exact_posterior(problem, tools):
    with pytest.raises(ProtocolError, match="needs the exact posterior"):
        fitted(GPCacheFClassifier, problem, tools, loss="leave_one_out", precision="grouped")


# When to stop.


def noisy():
    """Labels that mean nothing: to train on them can only hurt."""
    generator = np.random.default_rng(3)
    return generator.normal(size=(60, 12)), np.repeat(np.arange(5), 12)


def test_training_that_only_hurts_is_not_done(tools):
    X, y = noisy()
    options = {"learning_rate": 0.3, "epochs": 20, **tools.float64}
    model = GPCacheFClassifier.from_options(**options).fit(X, y)
    last = GPCacheFClassifier.from_options(stopping="last", **options).fit(X, y)
    free = regression(**tools.float64).fit(X, y)
    assert model.epochs_ < 20
    assert last.epochs_ == 20
    one, other = (
        min(tools.nll(m.loo_.logits / t, y) for t in np.geomspace(0.1, 1e3, 400))
        for m in (model, last)
    )
    assert one <= other + 1e-4
    if model.epochs_ == 0:
        np.testing.assert_allclose(model.logits(X), free.logits(X), rtol=1e-9)


def test_the_stop_is_the_one_that_held_out_rows_like_best(problem, tools):
    """The same schedule cut short: what was watched in the folds is what is then trained."""
    options = GP | tools.float64 | {"text_prior": problem.prior, "learning_rate": 0.1}
    model = GPCacheFClassifier.from_options(epochs=8, **options).fit(problem.X, problem.y)
    assert model.epochs_ in (0, 2, 4, 6, 8)
    assert len(model.training_loss_) == model.epochs_
    full = GPCacheFClassifier.from_options(epochs=8, stopping="last", **options).fit(
        problem.X, problem.y
    )
    assert full.training_loss_[: model.epochs_] == pytest.approx(model.training_loss_)


def test_a_validation_set_says_when_to_stop(problem, tools):
    options = GP | tools.float64 | {"text_prior": problem.prior, "learning_rate": 0.3}
    near = problem.X + np.random.default_rng(5).normal(size=problem.X.shape)
    model = GPCacheFClassifier.from_options(epochs=8, **options)
    model.fit(problem.X, problem.y, validation=(near, problem.y))
    labels, asked = np.searchsorted(model.classes_, problem.y), torch.tensor(tools.unit(near))
    losses = {}
    for stop in (0, 2, 4, 6, 8):
        logits = (
            model.fitted_.training.train(model.fitted_.shots, until=stop)[0].logits(asked).numpy()
        )
        losses[stop] = min(tools.nll(logits / t, labels) for t in np.geomspace(0.1, 1e3, 400))
    assert max(losses.values()) - min(losses.values()) > 1e-3
    assert losses[model.epochs_] == pytest.approx(min(losses.values()), abs=1e-4)


@pytest.mark.parametrize("trains", ["keys", "metric", "classes"])
def test_a_trained_model_comes_back_as_it_was(trains, problem, tools):
    options = GP | tools.float64 | {"text_prior": problem.prior, "stopping": "last"}
    model = GPCacheFClassifier.from_options(trains=trains, epochs=3, learning_rate=0.1, **options)
    model.fit(problem.X, problem.y)
    back = restore(state_of(model), device="cpu")
    np.testing.assert_allclose(
        back.logits(problem.queries), model.logits(problem.queries), rtol=1e-12
    )
    assert back.epochs_ == 3
    assert back.training_loss_ == model.training_loss_


@pytest.mark.parametrize("option", [{"loss": "leave_one_out"}, {"pull": 5.0}])
def test_what_comes_back_trains_as_it_did(option, problem, tools):
    options = GP | tools.float64 | {"text_prior": problem.prior, "stopping": "last", **option}
    model = GPCacheFClassifier.from_options(
        epochs=3, learning_rate=0.1, kernel_space="raw", **options
    )
    back = restore(state_of(model.fit(problem.X, problem.y)), device="cpu")
    for one in (model, back):
        one.add(problem.queries[:1], ["oak"])
    np.testing.assert_allclose(back.loo_.logits, model.loo_.logits, rtol=1e-9)


def test_unlike_the_shots_means_unlike_the_trained_keys(problem, tools):
    """What held-out shots are compared with is what new images are compared with."""
    options = GP | tools.float64 | {"text_prior": problem.prior, "stopping": "last"}
    model = GPCacheFClassifier.from_options(trains="metric", epochs=9, learning_rate=0.2, **options)
    model.fit(problem.X, problem.y)
    fold = model.fitted_.shots.folds(4, 0).numpy()
    for number in range(4):
        rows = fold != number
        part = GPCacheFClassifier.from_options(
            trains="metric", epochs=9, learning_rate=0.2, **options
        )
        part.fit(problem.X[rows], problem.y[rows])
        np.testing.assert_allclose(
            model.held_out_novelty_[~rows], part.novelty(problem.X[~rows]), rtol=1e-6
        )
