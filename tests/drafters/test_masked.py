"""A block of masks, filled in in one call: pytest tests/drafters/test_masked.py"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import blocks_in_numpy
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import context_of, tiny_t5
from tolerances import SMALL_LOGITS

from specdec.decoding import decode, prefill, row_keys
from specdec.drafters import Masked
from specdec.drafters.block_drafts import check_states, mask_ids, visible_in_block
from specdec.models.t5 import T5Draft, T5DraftConfig, T5Target
from specdec.plan import Plan
from specdec.sampling import Greedy, Sampling
from specdec.schedules import Fixed, ForeseenCost
from specdec.testing import Skipping, TableTarget
from specdec.types import Draft, Params, Request
from specdec.verifiers import GreedyMatch, MinimumBlock, SpeculativeSampling

V, K, N = 40, 3, 24
CONFIG = tiny_t5(
    V,
    16,
    24,
    decoder=2,
    mlp_activations=("gelu", "linear"),
    logits_via_embedding=False,
    relative_attention_num_buckets=8,
    relative_attention_max_distance=12,
)
TARGET = T5Target(CONFIG)
FILLING = T5Target(dataclasses.replace(CONFIG, vocab_size=V + K))
MODERN = T5Draft(T5DraftConfig.of(FILLING.config, states_dim=16, markov_rank=4))


CONFIDENT = T5Draft(T5DraftConfig.of(MODERN.config, confidence_head=True))
INPUTS = np.random.default_rng(0).integers(2, V, [3, 7]).astype(np.int32)


@functools.cache
def params() -> Params:
    return Params(TARGET.init(jax.random.key(1)), FILLING.init(jax.random.key(2)))


@functools.cache
def modern_params() -> Params:
    """With neighbours that matter."""
    drafter = MODERN.init(jax.random.key(2))
    drafter["decoder"]["markov_dense"]["kernel"] *= 20
    return params() | {"draft": drafter}


@functools.cache
def confident_params() -> Params:
    """Returns parameters whose confidence head is random, so that it prefers some positions."""
    drafter = CONFIDENT.init(jax.random.key(2))
    drafter["decoder"]["confidence_head"]["weight"] = jax.random.normal(jax.random.key(5), [16])
    return params() | {"draft": drafter}


def plan(drafter) -> Plan:
    """Most drafts are kept, whatever they are, so that all that a cache can lack happens."""
    kept = MinimumBlock(GreedyMatch(), 2)
    return Plan(TARGET, drafter, kept, Fixed(K), Greedy(), N, ())


def filled_in(drafter: Masked, row: int, text: np.ndarray, drafted: np.ndarray) -> np.ndarray:
    """[K, V] float64 logits for the masks behind a text; with neighbours, those drafted there."""
    modern, ids = drafter.model is MODERN, mask_ids(V + K, K, drafter.distinct)
    found = blocks_in_numpy.logits(
        (modern_params() if modern else params())["draft"],
        drafter.model.config,
        INPUTS[row : row + 1],
        text,
        np.asarray(ids),
        cached=drafter.reread is None,
        previous=np.concatenate([text[-1:], drafted[: K - 1]]) if modern else None,
        target=(params()["target"], CONFIG) if modern else None,
    )
    return found[:, :V]


@pytest.mark.ci
@pytest.mark.parametrize(
    "drafter",
    [Masked(FILLING, Greedy(), K), Skipping(Masked(MODERN, Greedy(), K, reread=N))],
    ids=type,
)
def test_every_draft_is_what_the_text_alone_leads_to(drafter):
    keys = row_keys(0, jnp.arange(len(INPUTS)))
    inner = getattr(drafter, "drafter", drafter)
    ours = modern_params() if inner.model is MODERN else params()
    output, seen = decode(ours, keys, jnp.asarray(INPUTS), plan(drafter)), 0
    for row in range(len(INPUTS)):
        found, done = output.row(row), 0
        for proposed, drafted, accepted in zip(*found[1:4], strict=True):
            if drafted:
                text = np.array([0, *found.tokens[:done]], np.int32)
                found_there = np.array(proposed[:drafted])
                logits = filled_in(inner, row, text, found_there)[:drafted]
                best = np.sort(logits, axis=1)
                clear = best[:, -1] - best[:, -2] > 1e-4  # rounding decides no other
                assert (found_there == logits.argmax(axis=1))[clear].all()
                seen += int(clear.sum())
            done += accepted + 1
    assert seen > 30


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [Greedy(), Sampling()])
def test_a_block_is_cut_by_what_its_states_foresee(sampling):
    """Whatever is drawn: by the text alone, in float64."""
    cuts = ForeseenCost(0.3, (1.0, 1.2, 1.5), buckets=(1, 2, K))
    whole = MinimumBlock(GreedyMatch(), 1) if sampling.greedy else SpeculativeSampling()
    made = Plan(TARGET, Masked(CONFIDENT, sampling, K), whole, cuts, sampling, N, ())
    ours, keys = confident_params(), row_keys(0, jnp.arange(len(INPUTS)))
    output, lengths = decode(ours, keys, jnp.asarray(INPUTS), made), []
    ids = np.asarray(mask_ids(V + K, K, True))
    for row in range(len(INPUTS)):
        found, done = output.row(row), 0
        for drafted, accepted in zip(found.drafted, found.accepted, strict=True):
            text = np.array([0, *found.tokens[:done]], np.int32)
            given = CONFIDENT.config, INPUTS[row : row + 1], text, ids, (ours["target"], CONFIG)
            kept = blocks_in_numpy.confidence(ours["draft"], *given)
            yields = np.cumsum([1, *np.cumprod(kept)])
            times = np.array([1.3, 1.3, 1.5, 1.8]) / yields
            clear = np.diff(np.sort(times))[0] > 1e-5
            if clear and N - done > K:
                assert drafted == times.argmin()
                lengths.append(drafted)
            done += accepted + 1
    assert len(lengths) > 20 and {1, K} <= set(lengths)


@pytest.mark.slow
def test_without_a_head_nothing_is_cut():
    cuts = ForeseenCost(0.3, (1.0, 9.0), buckets=(1, K))
    made = dataclasses.replace(plan(Masked(MODERN, Greedy(), K)), schedule=cuts)
    keys = row_keys(0, jnp.arange(len(INPUTS)))
    drafted = decode(modern_params(), keys, jnp.asarray(INPUTS), made).trace.drafted
    assert (drafted[:, :3] == K).all()


@pytest.mark.slow
def test_with_one_layer_rereading_the_text_changes_nothing():
    """The first layer's keys and values do not depend on the tokens before."""
    one = T5Target(dataclasses.replace(FILLING.config, num_decoder_layers=1))
    ours = Params(params()["target"], one.init(jax.random.key(3)))
    keys = row_keys(0, jnp.arange(len(INPUTS)))
    both = [
        decode(ours, keys, jnp.asarray(INPUTS), plan(Masked(one, Greedy(), K, reread=n)))
        for n in (None, N)
    ]
    np.testing.assert_array_equal(both[0].trace.proposed, both[1].trace.proposed)


def test_who_sees_what():
    found = visible_in_block(jnp.array([2, 1]), 3, 2, cached=True)[0].astype(int)
    assert found.tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 0, 1, 1],
        [1, 1, 0, 1, 1],
    ]
    reread = visible_in_block(jnp.array([2, 1]), 3, 2, cached=False).astype(int)
    assert reread[1].tolist() == [[1, 0, 0, 1, 1]] * 5


def test_masks_are_the_last_ids_of_the_table():
    assert mask_ids(9, 4, True).tolist() == [5, 6, 7, 8]
    assert mask_ids(9, 4, False).tolist() == [8, 8, 8, 8]
    distinct, same = (Masked(FILLING, Greedy(), 4, distinct=x) for x in (True, False))
    assert (distinct.spare_ids(), same.spare_ids()) == ({"draft": 4}, {"draft": 1})


def of_tables(fields, longest):
    """Returns what two tables write, and the target alone."""
    target, model = TableTarget(6), TableTarget(6 + 9)
    ours = Params(target.init(jax.random.key(0)), model.init(jax.random.key(1)))
    drafter = Masked(model, Greedy(), **fields)
    made = Plan(target, drafter, GreedyMatch(), Fixed(3), Greedy(), longest, ())
    given = row_keys(0, jnp.arange(2)), jnp.array([[2, 3], [3, 3]])
    return [decode(ours, *given, one) for one in (made, made.alone())]


def test_a_block_may_be_longer_than_the_output():
    """Its cache has room for the tokens of a call, of which a shorter text fills a part."""
    output, alone = of_tables({"masks": 9}, longest=4)
    assert output.tokens.tolist() == alone.tokens.tolist()
    assert (output.trace.drafted[:, 0] == 3).all()


def test_a_block_is_one_call():
    assert [tuple(part) for part in Masked(FILLING, Greedy(), K).parts(2.5)] == [("draft", 7, 1)]
    assert Masked(FILLING, Greedy(), K, reread=N).parts(0.5)[0] == ("draft", N + 1 + K, 0.5)


def test_the_timed_call_returns_its_text_and_the_block(monkeypatch):
    """The text stays, even if the first drafted id is 0."""
    block = jnp.array([[0, 5, 2], [3, 0, 0]])
    drafted = Draft(block, None, jnp.full(2, K))
    monkeypatch.setattr(Masked, "_drafted", lambda *given: drafted)
    model: Any = TableTarget(9)
    tokens = jnp.array([[1, 2, 3, 4, 8, 8, 8], [5, 6, 7, 1, 8, 8, 8]])
    tree = model.init(jax.random.key(0))
    cache = model.prefill(tree, jnp.array([[2, 3], [3, 3]]), 8)
    ids, _ = Masked(model, Greedy(), K).timed(TARGET)["draft"]({"draft": tree}, tokens, cache)
    assert ids.tolist() == [[1, 2, 3, 4, 0, 5, 2], [5, 6, 7, 1, 3, 0, 0]]


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"masks": 2}, "masks is 2 and the schedule drafts 3 tokens"),
        ({"masks": K, "reread": 9}, "reread is 9 and outputs have 24"),
    ],
)
def test_a_block_that_does_not_fit_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        of_tables(fields, longest=24)


@pytest.mark.parametrize("width, found", [(None, "missing"), (5, "5 wide"), (7, "7 wide")])
def test_states_of_another_width_are_refused(width, found):
    states = None if width is None else jnp.zeros([1, 2, width])
    with pytest.raises(ValueError, match=f"blocks read states of width 6, .* are {found}; give"):
        check_states("blocks", 6, context_of([[0, 1]], hidden=states))
    check_states("blocks", 6, context_of([[0, 1]], hidden=jnp.zeros([1, 2, 6])))


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"masks": 0}, "masks is 0"),
        ({"reread": 0}, "reread is 0"),
        ({"sampling": None}, "sampling is None"),
        ({"model": 3}, "model is 3"),
    ],
)
def test_a_mistake_says_what_to_do(fields, message):
    with pytest.raises(ValueError, match=message):
        Masked(**{"model": FILLING, "sampling": Sampling()} | fields)


@pytest.mark.slow
def test_an_opinion_of_a_text_is_behind_the_texts_own_neighbours():
    """q of each place depends on the taught token before it, and not on the token that the model
    drafts."""
    drafter = Masked(MODERN, Sampling(), K)
    made = Plan(TARGET, drafter, SpeculativeSampling(), Fixed(K), Sampling(), N, ())
    ours, keys = modern_params(), row_keys(0, jnp.arange(len(INPUTS)))
    state = prefill(ours, keys, jnp.asarray(INPUTS), made)
    context = made.context(state)
    keys = jnp.broadcast_to(keys[:, None], (len(keys), K))
    texts = np.random.default_rng(3).integers(2, V, [2, 3, K])
    logs = []
    for taught in texts:
        asked = context.replace(taught=jnp.asarray(taught, jnp.int32))
        request = Request(asked, keys, jnp.full(3, K))
        draft, _ = drafter.propose(ours, request, state.drafter)
        logs.append(np.log(draft.probs))
    neighbours = MODERN.markov(ours["draft"], jnp.asarray(texts[0], jnp.int32))
    others = MODERN.markov(ours["draft"], jnp.asarray(texts[1], jnp.int32))
    expected = np.asarray(neighbours - others)[:, : K - 1, :V]  # of the place behind each
    found = (logs[0] - logs[1])[:, 1:]
    centred = [x - x.mean(axis=2, keepdims=True) for x in (found, expected)]
    np.testing.assert_allclose(*centred, atol=SMALL_LOGITS)
    np.testing.assert_allclose(logs[0][:, 0], logs[1][:, 0], atol=SMALL_LOGITS)
