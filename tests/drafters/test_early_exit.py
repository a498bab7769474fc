"""The target's own first layers as a drafter: pytest tests/drafters/test_early_exit.py"""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import t5_in_numpy
from support import load, teacher_forced, tiny_t5

from specdec.decoding import decode, prefill, row_keys, step
from specdec.drafters import EarlyExit, Hybrid, PromptLookup
from specdec.models.heads import Heads, HeadsConfig
from specdec.models.t5 import T5Target
from specdec.plan import Plan
from specdec.sampling import Greedy, Sampling
from specdec.schedules import Fixed
from specdec.testing import Bench, TableTarget
from specdec.types import Params
from specdec.verifiers import Block, GreedyMatch

V, N = 40, 24
CONFIG = tiny_t5(
    V, 16, 24, decoder=3, relative_attention_num_buckets=8, relative_attention_max_distance=12
)
TARGET = T5Target(CONFIG)
HEAD = Heads(HeadsConfig(vocab_size=V, states_dim=16, heads=1, mlp_dim=8))
INPUTS = np.random.default_rng(0).integers(2, V, [3, 7]).astype(np.int32)


@functools.cache
def params() -> Params:
    head = HEAD.init(jax.random.key(2))
    return Params(TARGET.init(jax.random.key(1)), head | {"wo": 10 * head["wo"]})


def decoded(plan: Plan):
    keys = row_keys(0, jnp.arange(len(INPUTS)))
    return jax.device_get(decode(params(), keys, jnp.asarray(INPUTS), plan))


def plan(drafter, verifier=GreedyMatch(), sampling=Greedy()) -> Plan:  # noqa: B008
    return Plan(TARGET, drafter, verifier, Fixed(4), sampling, N)


@pytest.mark.ci
def test_layers_apart_are_the_whole_network():
    """In blocks of random widths, each split at random places, over 170 positions."""
    model, own, golden = load("v1_1")
    inputs, tokens = (
        jnp.asarray(golden["encoder_input_tokens"]),
        jnp.asarray(golden["decoder_input_tokens"]),
    )
    depth, longest = model.num_layers, tokens.shape[1]
    assert longest >= 150 and depth > 1
    whole = teacher_forced(model, own, inputs, tokens)
    cache = jax.jit(model.prefill, static_argnums=2)(own, inputs, longest)
    logits, generator = [], np.random.default_rng(1)
    decode = jax.jit(model.decode, static_argnames="layers")
    start = 0
    while start < longest:
        block = tokens[:, start : start + generator.choice([1, 8, 40])]
        split, resume = generator.integers(0, depth + 1), {}
        for layers in [x for x in ((0, split), (split, depth)) if x[1] > x[0] or x[0] == depth]:
            given = resume if layers[0] else {}
            output, fed = decode(own, block, cache, layers=tuple(map(int, layers)), **given)
            cache, resume = fed.rewind(cache.length), {"resume": output.stream}
        cache = cache.rewind(cache.length + block.shape[1])
        logits.append(output.logits)
        start += block.shape[1]
    # Blocks of other widths: the rounding of float32, of logits up to 10, by 1.5e-4 (EPYC, AVX2).
    np.testing.assert_allclose(jnp.concatenate(logits, axis=1), whole, rtol=0, atol=4e-4)


@pytest.mark.ci
def test_all_layers_have_everything_accepted_at_a_temperature():
    rule = Sampling(0.8)
    trace = decoded(plan(EarlyExit(3, rule), Block(), rule)).trace
    assert trace.accepted.sum() == trace.drafted.sum() > 0


@pytest.mark.ci
def test_the_head_drafts():
    """It is on the states of the exit, before the target's projection."""
    with_head, without = (decoded(plan(EarlyExit(2, Greedy(), x))) for x in (HEAD, None))
    tree, config = TARGET.first(2).part_of(params()["target"]), dataclasses.asdict(CONFIG)
    config["num_decoder_layers"] = 2
    heads = t5_in_numpy.in_float64(params()["draft"])
    for row in range(len(INPUTS)):
        text = np.zeros([1, 1], np.int32)
        state = t5_in_numpy.hidden(tree, config, INPUTS[row : row + 1], text)[0, 0]
        hidden = np.maximum(state @ heads["wi"][0], 0)
        state = state + hidden @ heads["wo"][0]
        best = np.argmax(state @ np.asarray(tree["decoder"]["logits_dense"]["kernel"], float))
        assert with_head.trace.proposed[row, 0, 0] == best
    assert (with_head.trace.proposed[:, 0] != without.trace.proposed[:, 0]).any()


@pytest.mark.ci
def test_each_key_and_value_is_written_once():
    """Numbers that an iteration writes into the target's caches, counted in the traced program: a
    call of K + 1 tokens writes as many."""
    speculative = plan(EarlyExit(1, Greedy()))
    alone = Plan(TARGET, None, None, None, Greedy(), N)  # type: ignore[arg-type]
    slots = {p: (len(INPUTS), 2, p.capacity, 8) for p in (speculative, alone)}
    row = CONFIG.num_heads * CONFIG.head_dim * 2 * CONFIG.num_decoder_layers * len(INPUTS)
    assert written(alone, slots[alone]) == row
    assert written(speculative, slots[speculative]) == 5 * row


def written(one: Plan, cache: tuple[int, ...]) -> int:
    keys = row_keys(0, jnp.arange(len(INPUTS)))
    given = params()
    state = prefill(given, keys, jnp.asarray(INPUTS), one)
    return _written(jax.make_jaxpr(step, static_argnums=2)(given, state, one).jaxpr, cache)


def _written(jaxpr, cache) -> int:
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dynamic_update_slice":
            into, block, *_ = (x.aval.shape for x in equation.invars)
            total += math.prod(block) if into == cache else 0
        inner = [x for x in jax.tree.leaves(equation.params, is_leaf=_is_jaxpr) if _is_jaxpr(x)]
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        total += times * sum(_written(getattr(x, "jaxpr", x), cache) for x in inner)
    return total


def _is_jaxpr(x) -> bool:
    return hasattr(x, "eqns")


def test_texts_are_the_targets_own():
    """The logits of this table depend on no sum of layers, so the first one drafts the target's
    own tokens; the call of the others finishes all five of them."""
    table = TableTarget(6, classes=3, num_layers=3)
    logits = table.init(jax.random.key(8))["logits"].at[..., 1].set(-9)  # no text ends early
    tree = {"logits": jnp.broadcast_to(logits[:, :1], logits.shape)}
    bench = Bench(table, Params(tree), EarlyExit(1, Greedy()), 12)
    output = bench.run(GreedyMatch(), Fixed(5), Greedy(), rows=16)
    np.testing.assert_array_equal(output.tokens, bench.alone(Greedy(), 16).tokens)
    np.testing.assert_array_equal(output.trace.accepted, output.trace.drafted)
    assert output.trace.accepted[0, :2].tolist() == [5, 5]


def test_calls_are_parts_of_the_target():
    drafter = EarlyExit(2, Greedy())
    assert {(role, width): n for role, width, n in plan(drafter).parts()} == {
        ("target", 5): 1,
        ("exit", 1): 4,
    }
    (model,) = drafter.partial_models(TARGET).values()
    assert model.num_layers == 2
    laid_out = plan(drafter).laid_out(1)
    assert laid_out.drafter == drafter


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda: EarlyExit(0, Greedy()), "EarlyExit.layers is 0; give a positive integer"),
        (
            lambda: decoded(plan(EarlyExit(4, Greedy()))),
            "is 4 and the target has 3 layers; give fewer",
        ),
        (
            lambda: EarlyExit(1, Greedy(), Heads(HeadsConfig(V, 16, 2, 8))),
            "EarlyExit.head has 2 heads; give one",
        ),
        (lambda: Hybrid(PromptLookup(), EarlyExit(1, Greedy())), "without the target's layers"),
        (lambda: TARGET.decode({}, None, None, layers=(2, 1)), r"layers is \(2, 1\) and the model"),  # type: ignore[arg-type]
        (lambda: TARGET.decode({}, None, None, layers=(1, 2)), "resume is missing"),  # type: ignore[arg-type]
    ],
)
def test_mistakes(make, says):
    with pytest.raises(ValueError, match=says):
        make()
