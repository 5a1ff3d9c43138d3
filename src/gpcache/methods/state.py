"""Fitted methods as plain values and arrays, restored by the name of their method."""

from __future__ import annotations

import numpy as np
import torch

from gpcache.errors import DataError, GPCacheError
from gpcache.methods.base import FeatureClassifier, State
from gpcache.methods.registry import find_method, name_of
from gpcache.support.saved_arrays import check_arrays


def state_of(model: FeatureClassifier) -> State:
    """Return a fitted model as plain values and arrays, with the name of its method.

    Parameters
    ----------
    model : FeatureClassifier
        A fitted model of a registered method.

    Returns
    -------
    State
        What `restore` takes.

    Examples
    --------
    >>> import numpy as np
    >>> from gpcache import GPCacheClassifier
    >>> from gpcache.methods import state_of
    >>> state_of(GPCacheClassifier().fit(np.eye(2), ["a", "b"])).settings["method"]
    'gpcache'
    """
    name = name_of(model)
    settings, arrays = model.state()
    return State({"method": name, **settings}, arrays)


def restore(state: State, *, device: str | torch.device = "auto") -> FeatureClassifier:
    """Restore a fitted model.

    Parameters
    ----------
    state : State
        What `state_of` returned.
    device : str or torch.device, default="auto"
        Device of the restored model.

    Returns
    -------
    FeatureClassifier
        The fitted model.

    Raises
    ------
    DataError
        If the arrays do not fit together.

    Examples
    --------
    >>> import numpy as np
    >>> from gpcache import GPCacheClassifier
    >>> from gpcache.methods import restore, state_of
    >>> model = GPCacheClassifier().fit(np.eye(2), ["a", "b"])
    >>> restore(state_of(model)).predict(np.eye(2)).tolist()
    ['a', 'b']
    """
    constructor = find_method(state.settings["method"]).constructor
    check_arrays(*state)
    try:
        model = constructor.from_state(state, device=device)
        if "spatial features" not in constructor.needs:
            model.logits(np.ones((1, state.settings["width"])))
        return model
    except GPCacheError:
        raise
    # Each method has its own arrays and settings; only restoring shows whether they fit.
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError,
            ValueError) as error:  # fmt: skip
        reason = " ".join(str(error).split())[:100]
        raise DataError(f"its parts do not fit together: {reason}") from None
