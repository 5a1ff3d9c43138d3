"""A GPU says what a CPU says: every method that works on features, in float64."""

import numpy as np
import pytest
import torch

from gpcache.methods import registry

ON_FEATURES = [name for name, method in registry().items() if not method.beyond_features]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ON_FEATURES)
def test_gpu_and_cpu_agree(name, tools):
    problem = tools.make_problem(shots=(6, 5, 4, 6, 5), spread=0.8)
    constructor = registry()[name].constructor
    options = {"epochs": 5} if "epochs" in constructor().get_params() else {}
    cpu, gpu = (
        constructor(text_prior=problem.prior, device=device, dtype="float64", **options)
        .fit(problem.X, problem.y)
        .predict_proba(problem.queries)
        for device in ("cpu", "cuda")
    )
    np.testing.assert_allclose(gpu, cpu, atol=1e-4)
