"""A T5 that answers from the first layer that is sure: pytest tests/models/test_calm.py"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import load
from tolerances import LOGITS, SMALL_LOGITS

from specdec.compile import hlo
from specdec.decoding import autoregressive_decode, decode, row_keys
from specdec.drafters import Autoregressive, EarlyExit
from specdec.models.t5 import Calm, T5Config, T5Target, calm
from specdec.plan import Plan
from specdec.program import batch_shapes, decoder
from specdec.sampling import Greedy, Sampling
from specdec.schedules import Fixed
from specdec.types import Params
from specdec.verifiers import Coupled, GreedyMatch

V, N, ROWS = 30, 12, 5
WHOLE = T5Target(
    T5Config(
        vocab_size=V,
        emb_dim=16,
        num_heads=2,
        head_dim=8,
        mlp_dim=24,
        num_encoder_layers=1,
        num_decoder_layers=5,
        exit_classifier=True,
    )
)
INPUTS = jnp.asarray(np.random.default_rng(0).integers(2, V, [ROWS, 7]), jnp.int32)
KEYS = row_keys(0, jnp.arange(ROWS))
SETTINGS = {
    "softmax": {"threshold": 0.1},
    "state": {"confidence": "state", "threshold": 0.9},
    "classifier": {"confidence": "classifier", "threshold": 0.5},
    "some exits": {"threshold": 0.1, "exits": (2, 4)},
    "decaying": {"threshold": 0.1, "decay": 4.0, "decay_length": N},
}


def every(*often):
    """Settings for `parametrize`; what is not often is for CI."""
    marked = [pytest.param(x, marks=[pytest.mark.ci] * (x not in often)) for x in SETTINGS]
    return pytest.mark.parametrize("name", marked)


@functools.cache
def params() -> dict:
    """Whose logits are far enough apart for exits to be sure of some."""
    own = WHOLE.init(jax.random.key(1))
    own["decoder"]["exit_classifier"]["weight"] = jax.random.normal(jax.random.key(2), [16])
    own["decoder"]["logits_dense"]["kernel"] *= 2
    return own


def decoded(target: T5Target, rows=slice(None), sampling=Greedy()):  # noqa: B008
    given = {"target": target, "sampling": sampling, "max_length": N}
    return jax.device_get(autoregressive_decode(params(), KEYS[rows], INPUTS[rows], **given))


def fed(tokens) -> jnp.ndarray:
    return jnp.concatenate([jnp.zeros([len(tokens), 1], jnp.int32), tokens[:, :-1]], axis=1)


def confidence_of(target: Calm, output, before) -> float:
    """By its definition, in float64."""
    if target.confidence == "softmax":
        logits = np.asarray(output.logits[0, 0], float)
        probs = np.sort(np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum())
        return probs[-1] - probs[-2]
    if target.confidence == "state":
        if before is None:
            return -1.0
        x, y = (np.asarray(one[0, 0], float) for one in (output.stream, before))
        return float(x @ y / np.linalg.norm(x) / np.linalg.norm(y))
    own = params()["decoder"]["exit_classifier"]
    score = np.asarray(output.hidden[0, 0], float) @ np.asarray(own["weight"], float)
    return float(1 / (1 + np.exp(-score - float(own["bias"]))))


def token_by_token(target: Calm, row: int, tokens) -> tuple[list[int], np.ndarray]:
    """Layers and logits of each token, one layer after another on the host."""
    cache = WHOLE.prefill(params(), INPUTS[row : row + 1], N)
    run = jax.jit(WHOLE.decode, static_argnames="layers")
    depths, logits = [], []
    for t, token in enumerate(tokens):
        threshold = target.threshold
        assert threshold is not None
        if target.decay is not None and target.decay_length is not None:
            decayed = np.exp(-target.decay * t / target.decay_length)
            threshold = min(0.9 * threshold + 0.1 * decayed, 1)
        output, resume, before = None, {}, None
        for layer in range(5):
            given = {"layers": (layer, layer + 1), **resume}
            output, after = run(params(), token.reshape(1, 1), cache, **given)
            cache, resume = after.rewind(cache.length), {"resume": output.stream}
            if layer + 1 in (target.exits or (1, 2, 3, 4)):
                if confidence_of(target, output, before) > threshold:
                    break
                before = output.stream
        assert output is not None
        if layer < 4:
            cache = WHOLE.pass_by(params(), output.stream, cache, (layer + 1, 5))
            cache = cache.rewind(cache.length - 1)
        cache = cache.rewind(cache.length + 1)
        depths.append(layer + 1)
        logits.append(np.asarray(output.logits[0, 0]))
    return depths, np.array(logits)


@every("some exits")
def test_each_token_leaves_by_its_own_confidence(name):
    target = calm(WHOLE, **SETTINGS[name])
    tokens = fed(decoded(target).tokens)
    cache = target.prefill(params(), INPUTS, N)
    logits = target.decode(params(), tokens, cache)[0].logits
    depths = np.asarray(target.depths(params(), tokens, cache))
    right = [token_by_token(target, row, tokens[row]) for row in range(ROWS)]
    np.testing.assert_array_equal(depths, [layers for layers, _ in right])
    np.testing.assert_allclose(logits, [rows for _, rows in right], rtol=0, atol=SMALL_LOGITS)
    assert len(set(depths.ravel().tolist())) > 1, "some leave, and some do not"


@every()
def test_no_row_and_no_draft_token_changes_another(name):
    """Rows alone, and texts that are verified in calls of four tokens, whoever drafts."""
    target = calm(WHOLE, **SETTINGS[name])
    output = decoded(target)
    for row in range(ROWS):
        alone = decoded(target, slice(row, row + 1))
        np.testing.assert_array_equal(alone.tokens[0], output.tokens[row])
    drafter = Autoregressive(WHOLE, Greedy())
    plan = Plan(target, drafter, GreedyMatch(), Fixed(3), Greedy(), N)
    ours = decode(Params(params(), params()), KEYS, INPUTS, plan)
    np.testing.assert_array_equal(ours.tokens, output.tokens)
    np.testing.assert_allclose(ours.log_probs, output.log_probs, rtol=0, atol=SMALL_LOGITS)
    assert 0 < ours.trace.accepted.sum() < ours.trace.drafted.sum()
    assert not plan.exact and not plan.alone().exact


@pytest.mark.ci
def test_drawn_texts_are_its_own_for_every_seed():
    target, rule = calm(WHOLE, **SETTINGS["softmax"]), Sampling(0.8)
    plan = Plan(target, Autoregressive(WHOLE, rule), Coupled(), Fixed(3), rule, N)
    ours = decode(Params(params(), params()), KEYS, INPUTS, plan)
    np.testing.assert_array_equal(ours.tokens, decoded(target, sampling=rule).tokens)


@pytest.mark.parametrize(
    "confidence",
    ["softmax", *(pytest.param(x, marks=pytest.mark.ci) for x in ("state", "classifier"))],
)
def test_without_exits_it_is_the_whole_model(confidence):
    target = calm(WHOLE, threshold=None, confidence=confidence)
    ours, whole = decoded(target), decoded(WHOLE)
    np.testing.assert_array_equal(ours.tokens, whole.tokens)
    np.testing.assert_allclose(ours.log_probs, whole.log_probs, rtol=0, atol=SMALL_LOGITS)


@pytest.mark.ci
def test_without_exits_over_long_texts():
    """Relative positions past the exact buckets, in one call."""
    model, own, golden = load("v1_1")
    given = [jnp.asarray(golden[f"{x}coder_input_tokens"]) for x in ("en", "de")]
    logits = [
        target.decode(own, given[1], target.prefill(own, given[0], 170))[0].logits
        for target in (model, calm(model, threshold=None))
    ]
    np.testing.assert_allclose(*logits, rtol=0, atol=LOGITS)


def test_a_layer_that_may_be_skipped_copies_no_cache():
    """As many arrays of a cache are copied as in the whole model, whose products of one token XLA's
    CPU backend lays out anew: the loops of no or one trip add none."""
    assert 0 < copies(WHOLE) == copies(calm(WHOLE, threshold=0.5))


def copies(target: T5Target) -> int:
    plan = Plan(target, None, None, None, Greedy(), 50)  # type: ignore[arg-type]
    shapes = plan.params({"target": jax.eval_shape(target.init, jax.random.key(0))})
    compiled = decoder(plan).lower(shapes, *batch_shapes(1, 8)).compile()
    operations = hlo.read(compiled.as_text() or "").inside("decode").operations
    caches = [x for x in operations if f"[1,2,{plan.capacity},8]" in x.shape]
    return sum(x.opcode == "copy" for x in caches)


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda: calm(WHOLE, threshold=1.5), "Calm.threshold is 1.5; give 0 to 1, or None"),
        (lambda: calm(WHOLE, confidence="best"), "Calm.confidence is 'best'; use 'softmax', "),
        (lambda: calm(WHOLE, exits=(0, 2)), r"Calm.exits is \(0, 2\); give layers from 1 to 5"),
        (lambda: calm(WHOLE, exits=(6,)), r"Calm.exits is \(6,\); give layers from 1 to 5"),
        (lambda: calm(WHOLE, decay=4.0), "decay is 4.0 and decay_length None; give both"),
        (
            lambda: calm(
                T5Target(dataclasses.replace(WHOLE.config, exit_classifier=False)),
                confidence="classifier",
            ),
            "'classifier' and the model has none; train one",
        ),
        (lambda: calm("t5"), "calm.model is a str; give a T5"),
        (
            lambda: decode(
                Params(params()),
                KEYS,
                INPUTS,
                Plan(calm(WHOLE), EarlyExit(1, Greedy()), GreedyMatch(), Fixed(2), Greedy(), N),
            ),
            "Calm chooses its layers itself",
        ),
    ],
)
def test_mistakes(make, says):
    with pytest.raises(ValueError, match=says):
        make()
