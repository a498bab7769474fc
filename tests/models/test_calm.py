"""A T5 that answers from the first layer that is sure: pytest tests/models/test_calm.py"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import few, tiny_t5
from tolerances import SMALL_LOGITS

from specdec.decoding import autoregressive_decode, decode, row_keys
from specdec.drafters import Autoregressive, EarlyExit
from specdec.measure import recording
from specdec.models.t5 import Calm, T5Draft, T5DraftConfig, T5Target, calm
from specdec.plan import Plan
from specdec.predict import schedule_replay
from specdec.sampling import Greedy, Sampling
from specdec.schedules import Fixed
from specdec.types import Params, Part, TargetCall
from specdec.verifiers import Coupled, GreedyMatch

V, N, ROWS = 30, 12, 5
WHOLE = T5Draft(T5DraftConfig.of(tiny_t5(V, 16, 24, decoder=5), exit_classifier=True))
INPUTS = jnp.asarray(np.random.default_rng(0).integers(2, V, [ROWS, 7]), jnp.int32)
KEYS = row_keys(0, jnp.arange(ROWS))
SETTINGS = {
    "softmax": {"threshold": 0.1},
    "state": {"confidence": "state", "threshold": 0.9},
    "classifier": {"confidence": "classifier", "threshold": 0.5},
    "some exits": {"threshold": 0.1, "exits": (2, 4)},
    "decaying": {"threshold": 0.1, "decay": 4.0, "decay_length": N},
}


def ci(value):
    """A parameter of `parametrize` that is for CI."""
    return pytest.param(value, marks=pytest.mark.ci)


def every(*often):
    """Settings for `parametrize`; of what is not often, "some exits" is for CI."""
    marks = {"some exits": pytest.mark.ci} | dict.fromkeys(often, ())
    marked = [pytest.param(x, marks=marks.get(x, pytest.mark.slow)) for x in SETTINGS]
    return pytest.mark.parametrize("name", marked)


def both() -> dict:
    """Parameters by role, where a model of the same ones drafts."""
    return {"target": params(), "draft": params()}


@functools.cache
def params() -> dict:
    """Whose logits are far enough apart for exits to be sure of some."""
    own = jax.jit(WHOLE.init)(jax.random.key(1))
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


RUN = {  # compiled once for all rows
    "prefill": jax.jit(WHOLE.prefill, static_argnums=2),
    "decode": jax.jit(WHOLE.decode, static_argnames="layers"),
    "pass_by": jax.jit(WHOLE.pass_by, static_argnums=3),
}


def token_by_token(target: Calm, row: int, tokens) -> tuple[list[int], np.ndarray]:
    """Layers and logits of each token, one layer after another on the host."""
    cache = RUN["prefill"](params(), INPUTS[row : row + 1], N)
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
            output, after = RUN["decode"](params(), token.reshape(1, 1), cache, **given)
            cache, resume = after.rewind(cache.length), {"resume": output.stream}
            if layer + 1 in (target.exits or (1, 2, 3, 4)):
                if confidence_of(target, output, before) > threshold:
                    break
                before = output.stream
        assert output is not None
        if layer < 4:
            cache = RUN["pass_by"](params(), output.stream, cache, (layer + 1, 5))
            cache = cache.rewind(cache.length - 1)
        cache = cache.rewind(cache.length + 1)
        depths.append(layer + 1)
        logits.append(np.asarray(output.logits[0, 0]))
    return depths, np.array(logits)


@every()
def test_each_token_leaves_by_its_own_confidence(name):
    target = calm(WHOLE, **SETTINGS[name])
    tokens = fed(decoded(target).tokens)
    cache = jax.jit(target.prefill, static_argnums=2)(params(), INPUTS, N)
    output = jax.jit(target.decode)(params(), tokens, cache)[0]
    logits, depths = output.logits, np.asarray(output.depth)
    right = [token_by_token(target, row, tokens[row]) for row in range(ROWS)]
    np.testing.assert_array_equal(depths, [layers for layers, _ in right])
    np.testing.assert_allclose(logits, [rows for _, rows in right], rtol=0, atol=SMALL_LOGITS)
    assert len(set(depths.ravel().tolist())) > 1, "some leave, and some do not"


@every()
def test_no_row_and_no_draft_token_changes_another(name):
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
@pytest.mark.parametrize("name", few(["some exits", "state", "classifier"]))
def test_tokens_that_always_leave_there(name):
    """Their logits are those of a model of so many layers: layers see nothing of those above."""
    target = calm(WHOLE, **SETTINGS[name])
    assert target.depths == {"some exits": (2, 4, 5), "state": (2, 3, 4, 5)}.get(
        name, (*range(1, 6),)
    )
    tokens = fed(decoded(WHOLE).tokens)
    for depth in target.depths:
        always, first = target.always(depth), WHOLE.first(depth)
        cache = always.prefill(params(), INPUTS, N)
        output = always.decode(params(), tokens, cache)[0]
        assert set(np.asarray(output.depth).ravel().tolist()) == {depth}
        own = first.part_of(params())
        right = first.decode(own, tokens, first.prefill(own, INPUTS, N))[0].logits
        np.testing.assert_allclose(output.logits, right, rtol=0, atol=1e-5)  # sums of 24 terms
    assert target.whole == WHOLE


def test_what_a_call_of_a_depth_reads():
    """Two layers and their head, one more head for the exit before, and what makes keys and values
    of the three layers above."""
    own = WHOLE.parameter_shapes()
    always = calm(WHOLE, threshold=0.5).always(2)
    first, head = WHOLE.first(2), own["decoder"]["logits_dense"]["kernel"].size
    above = {f"layers_{i}" for i in range(2, 5)}
    assert first.part_of(own)["decoder"].keys() == own["decoder"].keys() - above
    below = sum(x.size for x in jax.tree.leaves(first.read_by_decode(first.part_of(own))))
    read = sum(x.size for x in jax.tree.leaves(always.read_by_decode(own)))
    assert read == below + head + 3 * 2 * 16 * 16
    state = calm(WHOLE, confidence="state").always(2)
    assert sum(x.size for x in jax.tree.leaves(state.read_by_decode(own))) == read - head
    assert always.cache_bytes(1, N, 7) == first.cache_bytes(1, N, 7)


@pytest.mark.parametrize(
    "weights, second", [("stored", False), ("int8", False), ("int8_tokens", True)]
)
def test_an_exit_of_a_tied_model_asks_its_table_of_tokens_or_the_second_one(weights, second):
    config = dataclasses.replace(WHOLE.config, logits_via_embedding=True, exit_classifier=False)
    target = calm(T5Draft(config, weights=weights), threshold=0.5)
    shapes = target.parameter_shapes()
    (asked,) = target.always(2).read_by_decode(shapes)["asked"]
    assert asked == (shapes["decoder"]["logits_dense"] if second else shapes["token_embedder"])


def test_the_parts_of_a_plan_are_calls_by_depth():
    target = calm(WHOLE, **SETTINGS["some exits"])
    alone = Plan(target, None, None, None, Greedy(), N)  # type: ignore[arg-type]
    thirds = {Part("target/2", 1, 1 / 3), Part("target/4", 1, 1 / 3), Part("target/5", 1, 1 / 3)}
    assert set(alone.parts()) == thirds
    found = alone.parts(TargetCall.each(4 * [0], depths=[2, 2, 5, 4]))
    assert set(found) == {
        Part("target/2", 1, 0.5),
        Part("target/4", 1, 0.25),
        Part("target/5", 1, 0.25),
    }
    drafts = Plan(target, Autoregressive(WHOLE, Greedy()), GreedyMatch(), Fixed(2), Greedy(), N)
    found = {part[:2]: part.calls for part in drafts.parts(TargetCall.each([2, 2], depths=[2, 4]))}
    assert found == {("target/2", 3): 0.5, ("target/4", 3): 0.5, ("draft", 2): 1, ("draft", 1): 1}
    shorter = dataclasses.replace(drafts, schedule=Fixed(2, shorter=(0,)))
    found = {part[:2]: part.calls for part in shorter.parts(TargetCall.each([0, 2], depths=[2, 4]))}
    assert found == {
        ("target/2", 1): 0.5,
        ("target/4", 3): 0.5,
        ("draft", 2): 0.5,
        ("draft", 1): 0.5,
    }
    assert drafts.baseline() == Plan(WHOLE, None, None, None, Greedy(), N)  # type: ignore[arg-type]


@pytest.mark.parametrize("drafts", [ci("alone"), *few(["itself", "whole"], 0)])
def test_a_replay_knows_how_deep_calls_go(drafts):
    target = calm(WHOLE, **SETTINGS["some exits"])
    drafter = Autoregressive(WHOLE if drafts == "whole" else target, Greedy())
    plan = Plan(target, drafter, GreedyMatch(), Fixed(3), Greedy(), N)
    plan = plan.alone() if drafts == "alone" else plan
    own, index = plan.params(both()), np.arange(ROWS)
    texts = recording.generate(
        plan, own["target"], [(index, np.asarray(INPUTS))], seed=0, tokens=ROWS * N
    )
    passes = list(recording.measure(plan, own, texts, tables=False))
    replayed = schedule_replay.replay(plan, passes, vocab_size=V)
    output = jax.device_get(decode(own, KEYS, INPUTS, plan))
    np.testing.assert_array_equal(replayed.calls, output.trace.calls)
    np.testing.assert_array_equal(replayed.accepted, output.trace.accepted)
    exact = (output.trace.accepted == plan.longest_draft) & (output.trace.depth > 0)
    assert exact.any()
    assert replayed.depth is not None
    np.testing.assert_array_equal(replayed.depth[exact], output.trace.depth[exact])
    without = [one._replace(depths=()) for one in passes]
    with pytest.raises(ValueError, match="text 0 does not record its tokens' layers"):
        schedule_replay.replay(plan, without, vocab_size=V)


@pytest.mark.slow
def test_drawn_texts_are_its_own_for_every_seed():
    target, rule = calm(WHOLE, **SETTINGS["softmax"]), Sampling(0.8)
    plan = Plan(target, Autoregressive(WHOLE, rule), Coupled(), Fixed(3), rule, N)
    ours = decode(Params(params(), params()), KEYS, INPUTS, plan)
    np.testing.assert_array_equal(ours.tokens, decoded(target, sampling=rule).tokens)


@pytest.mark.ci
@pytest.mark.parametrize("confidence", few(["softmax", "state", "classifier"]))
def test_without_exits_it_is_the_whole_model(confidence):
    target = calm(WHOLE, threshold=None, confidence=confidence)
    ours, whole = decoded(target), decoded(WHOLE)
    np.testing.assert_array_equal(ours.tokens, whole.tokens)
    np.testing.assert_allclose(ours.log_probs, whole.log_probs, rtol=0, atol=SMALL_LOGITS)


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda: calm(WHOLE, threshold=1.5), "Calm.threshold is 1.5; give a probability"),
        (lambda: calm(WHOLE, confidence="best"), "Calm.confidence is 'best'; give one of 'softmax"),
        (lambda: calm(WHOLE, exits=(0, 2)), r"Calm.exits is \(0, 2\); give layers from 1 on"),
        (lambda: calm(WHOLE, exits=(6,)), r"Calm.exits is \(6,\); give layers from 1 to 5"),
        (lambda: calm(WHOLE, decay=4.0), "decay is 4.0 and decay_length None; give both"),
        (
            lambda: calm(
                T5Draft(dataclasses.replace(WHOLE.config, exit_classifier=False)),
                confidence="classifier",
            ),
            "the model has no exit classifier; train one",
        ),
        (lambda: calm("t5"), "calm.model is a str; give a T5"),
        (lambda: calm(WHOLE, exits=(2, 4)).always(3), r"depth is 3; give one of \(2, 4, 5\)"),
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
