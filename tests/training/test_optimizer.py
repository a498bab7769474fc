"""Adafactor and its learning rate: pytest tests/training/test_optimizer.py"""

import jax.numpy as jnp
import numpy as np
import pytest

from specdec.training import Adafactor, LearningRate


def rms(x):
    return np.sqrt(np.mean(np.square(x)))


@pytest.mark.parametrize("shape, factored", [((127, 128), False), ((128, 128), True)])
def test_steps_are_those_of_the_definition(shape, factored):
    """Three steps in NumPy, the last one of a gradient large enough to be clipped."""
    random = np.random.default_rng(0)
    params = random.normal(size=shape)
    transformation = Adafactor(LearningRate(0.5, warmup=1)).transformation()
    state = transformation.init(jnp.asarray(params, jnp.float32))
    moment = np.zeros(shape)
    for step, size in enumerate((1.0, 0.5, 4.0), start=1):
        gradient = size * random.normal(size=shape)
        given = jnp.asarray(gradient, jnp.float32)
        found, state = transformation.update(given, state, jnp.asarray(params, jnp.float32))
        beta = 1 - step**-0.8
        moment = beta * moment + (1 - beta) * gradient**2
        estimate = moment
        if factored:
            rows, columns = moment.mean(axis=1, keepdims=True), moment.mean(axis=0, keepdims=True)
            estimate = rows * columns / moment.mean()
        update = gradient / np.sqrt(estimate)
        assert (rms(update) > 1.2) == (step == 3), "or clipping is not seen"
        expected = -0.5 * rms(params) * update / max(1, rms(update))
        # Sums of 128 squares in float32, on entries of about 0.5.
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)


def test_a_gradient_is_clipped_before_anything_else():
    """A clipped gradient counts as a small one in the moments of the steps after it."""
    params = jnp.asarray([3.0, 4.0])
    updates = []
    for clip, size in ((1.0, 100.0), (None, 1.0)):
        transformation = Adafactor(LearningRate(0.5, warmup=1), clip).transformation()
        state = transformation.init(params)
        for gradient in (size * jnp.asarray([0.6, 0.8]), jnp.asarray([0.3, -0.4])):
            update, state = transformation.update(gradient, state, params)
        updates.append(update)
    np.testing.assert_allclose(*updates, rtol=1e-5)  # the norm of 100 is rounded


@pytest.mark.parametrize(
    "rate, expected",
    [
        (LearningRate(0.5, warmup=4), {1: 0.125, 4: 0.5, 5: 0.5, 900: 0.5}),
        (LearningRate(0.5, 4, decay="rsqrt"), {2: 0.25, 4: 0.5, 16: 0.25, 64: 0.125}),
        (LearningRate(0.5, 4, hold=12, decay="rsqrt"), {4: 0.5, 16: 0.5, 64: 0.25}),
        (LearningRate(0.5, 4, hold=2, decay="linear", end=10), {6: 0.5, 8: 0.25, 10: 0, 99: 0}),
    ],
)
def test_learning_rates(rate, expected):
    assert {step: float(rate(step - 1)) for step in expected} == expected


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"decay": "cosine"}, "one of 'constant', 'rsqrt', 'linear'"),
        ({"decay": "linear"}, "decay is 'linear' and end is None; give end"),
        ({"end": 5000}, "end is 5000 with decay .*; leave out end, or give decay"),
        ({"decay": "linear", "end": 900}, "more than warmup"),
        ({"warmup": 0}, "warmup is 0; give a positive integer"),
        ({"peak": 0}, "peak is 0; give a positive number"),
        ({"peak": "1"}, "peak is '1'; give a positive number"),
    ],
)
def test_a_wrong_learning_rate_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        LearningRate(**fields)


@pytest.mark.parametrize("clip", [0, -1.0, "1"])
def test_a_bound_that_is_not_positive_is_refused(clip):
    with pytest.raises(ValueError, match=f"clip_norm is {clip!r}; give a positive number, or None"):
        Adafactor(clip_norm=clip)
