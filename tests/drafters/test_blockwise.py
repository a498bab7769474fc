"""Heads on the target's own state: pytest tests/drafters/test_blockwise.py"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import t5_in_numpy
from support import tiny_t5

from specdec import checkpoints
from specdec.decoding import decode, row_keys
from specdec.drafters import Blockwise
from specdec.drafters.draft_loop import _one_by_one
from specdec.models.heads import Heads, HeadsConfig
from specdec.models.t5 import T5Target
from specdec.plan import Plan
from specdec.sampling import Greedy
from specdec.schedules import Fixed
from specdec.testing import Skipping
from specdec.training import LookAhead, Pairs, TrainRun
from specdec.training.loss import Frozen
from specdec.types import Params
from specdec.verifiers import GreedyMatch, MinimumBlock

V, K, N = 40, 3, 24
CONFIG = tiny_t5(
    V, 16, 24, decoder=2, relative_attention_num_buckets=8, relative_attention_max_distance=12
)
TARGET = T5Target(CONFIG)
HEADS = Heads(HeadsConfig(vocab_size=V, states_dim=16, heads=K, mlp_dim=8))
INPUTS = np.random.default_rng(0).integers(2, V, [3, 7]).astype(np.int32)


def params(target: T5Target) -> Params:
    """With heads that differ."""
    heads = HEADS.init(jax.random.key(2))
    return Params(target.init(jax.random.key(1)), heads | {"wo": 10 * heads["wo"]})


def in_numpy(given: Params, row: int, text: np.ndarray) -> np.ndarray:
    """[T, K, V] float64 logits of the heads at each place of a text, start token first."""
    config, inputs = dataclasses.asdict(CONFIG), INPUTS[row : row + 1]
    state = t5_in_numpy.hidden(given["target"], config, inputs, text[None])[0]
    heads = t5_in_numpy.in_float64(given["draft"])
    hidden = np.maximum(np.einsum("td,kdm->tkm", state, heads["wi"]), 0)
    ahead = state[:, None] + np.einsum("tkm,kmd->tkd", hidden, heads["wo"])
    return ahead @ np.asarray(given["target"]["decoder"]["logits_dense"]["kernel"], float)


@pytest.mark.ci
def test_each_head_guesses_from_the_state_of_the_pending_token():
    """Whatever is kept: the state is the one of the last kept token, not of a rejected one."""
    ours, asked = params(TARGET), Skipping(Blockwise(HEADS, Greedy()))
    plan = Plan(TARGET, asked, MinimumBlock(GreedyMatch(), 1), Fixed(K), Greedy(), N, ())
    keys = row_keys(0, jnp.arange(len(INPUTS)))
    output, seen = decode(ours, keys, jnp.asarray(INPUTS), plan), 0
    for row in range(len(INPUTS)):
        found, done = output.row(row), 0
        for proposed, drafted, accepted in zip(*found[1:4], strict=True):
            assert done or not drafted  # nothing before the first call
            if drafted:
                text = np.array([0, *found.tokens[: done - 1]], np.int32)
                logits = in_numpy(ours, row, text)[-1, :drafted]
                best = np.sort(logits, axis=1)
                clear = best[:, -1] - best[:, -2] > 1e-4  # rounding decides no other
                assert (np.array(proposed[:drafted]) == logits.argmax(axis=1))[clear].all()
                seen += int(clear.sum())
            done += accepted + 1
    assert seen > 30


@pytest.mark.parametrize("one_head", [pytest.param(False, marks=pytest.mark.ci), True])
def test_what_is_trained_is_what_is_drafted_with(one_head):
    ours, generator = params(TARGET), np.random.default_rng(1)
    lengths = np.array([9, 5, 1])
    targets = generator.integers(2, V, [3, 9]) * (np.arange(9) < lengths[:, None])
    pairs = Pairs(INPUTS, targets.astype(np.int32))
    losses = np.zeros([3, K])  # nats of each row and head
    for row, length in enumerate(lengths):
        text = np.concatenate([[0], targets[row, : length - 1]]).astype(np.int32)
        logits = in_numpy(ours, row, text)
        logits -= np.log(np.exp(logits).sum(axis=2, keepdims=True))
        for head in range(K):
            for place in range(length - 1 - head):
                losses[row, head] -= logits[place, head, targets[row, place + 1 + head]]
    frozen, objective = Frozen(TARGET, ours["target"]), LookAhead(one_head)
    loss = jax.jit(lambda key: objective.loss(HEADS, ours["draft"], frozen, pairs, key, 0.0).loss)
    found = {round(float(loss(key)), 3) for key in jax.random.split(jax.random.key(0), 30)}
    expected = losses.sum(axis=0) if one_head else [losses.sum()]
    assert found == {round(float(one), 3) for one in expected}
    measured = jax.jit(lambda own: objective.measure(HEADS, own, frozen, pairs))(ours["draft"])
    assert float(measured.loss) == pytest.approx(losses.sum(), rel=1e-5)
    assert int(measured.tokens) == sum(max(n - 1 - head, 0) for n in lengths for head in range(K))


def test_heads_are_saved_and_loaded(tmp_path):
    ours = params(TARGET)["draft"]
    checkpoints.save(tmp_path / "heads", ours, config=HEADS.config)
    assert checkpoints.config_from(tmp_path / "heads") == HEADS.config
    loaded = checkpoints.load(tmp_path / "heads")
    jax.tree.map(np.testing.assert_array_equal, loaded, ours)


@pytest.mark.parametrize(
    "heads, gamma, message",
    [
        (HEADS, 4, "has 3 heads and the schedule drafts 4 tokens"),
        (
            Heads(dataclasses.replace(HEADS.config, states_dim=12)),
            3,
            "read states of width 12, and the target's are 16 wide",
        ),
    ],
)
def test_heads_that_do_not_fit_are_refused(heads, gamma, message):
    ours = params(TARGET) | {"draft": heads.init(jax.random.key(2))}
    plan = Plan(TARGET, Blockwise(heads, Greedy()), GreedyMatch(), Fixed(gamma), Greedy(), N)
    with pytest.raises(ValueError, match=message):
        decode(ours, row_keys(0, jnp.arange(3)), jnp.asarray(INPUTS), plan)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Blockwise(3, Greedy()), "Blockwise.heads is 3"),
        (lambda: Blockwise(HEADS, None), "Blockwise.sampling is None"),
        (
            lambda: dataclasses.replace(HEADS, weights="int8"),
            "weights is 'int8'; this family has only 'stored'",
        ),
        (lambda: dataclasses.replace(HEADS.config, heads=0), "HeadsConfig.heads is 0"),
        (lambda: dataclasses.replace(HEADS.config, activation="x"), "activation is 'x'"),
        (lambda: dataclasses.replace(HEADS.config, dtype="int32"), "dtype is 'int32'"),
        (lambda: LookAhead(label_smoothing=1), "LookAhead.label_smoothing is 1"),
        (lambda: LookAhead().check(TARGET, V), "the model is a T5Target; give models.heads"),
        (
            lambda: TrainRun(
                Heads(dataclasses.replace(HEADS.config, states_dim=12)),
                *("a task", {"inputs": 8, "targets": 8}, 1, 1),
                target=TARGET,
                target_path="of the target",
            ),
            r"states of width 12 \(states_dim\), and the target's are 16 wide",
        ),
        (lambda: HEADS.decode({}, None, None), "use them in the drafter Blockwise"),
    ],
)
def test_a_mistake_says_what_to_do(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("length, calls", [(0, 0), (0.5, 0.5), (2.5, 1)])
def test_a_block_is_one_call(length, calls):
    parts = Blockwise(HEADS, Greedy()).parts(length)
    assert [tuple(part) for part in parts] == [("draft", K, calls)]


def test_a_block_taken_one_by_one_is_the_block():
    """As processors that look back take it."""
    logits = jax.random.normal(jax.random.key(0), [2, 4, 5])
    steps = _one_by_one(logits)
    found, carry = [steps.logits], steps.carry
    for _ in range(3):
        following, carry = steps.advance(carry, jnp.zeros(2, jnp.int32))
        found.append(following)
    np.testing.assert_array_equal(jnp.stack(found, axis=1), logits)
