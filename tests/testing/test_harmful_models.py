"""Logits that do harm, by hand: pytest tests/testing/test_harmful_models.py"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from specdec.testing import TableTarget
from specdec.testing.drafters import HARMS, HarmfulModel

NAN, INF = np.nan, np.inf


LOGITS = {
    "the unlikeliest": [-1, 2, -3],
    "stop ids": [1e4, -2, 1e4],
    "ids beyond the vocabulary": [1, -2, 3, *[1e4] * 8],
    "NaN": [NAN, NAN, NAN],
    "infinite": [INF, INF, INF],
}


@pytest.mark.parametrize("harm", HARMS)
def test_each_harm_is_what_its_name_says(harm):
    model = HarmfulModel(TableTarget(3), harm, stop_ids=(0, 2))
    found = model._changed(jnp.array([[[1.0, -2.0, 3.0]]]))
    np.testing.assert_array_equal(found, [[LOGITS[harm]]])
