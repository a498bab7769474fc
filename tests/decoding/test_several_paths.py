"""Several paths and trees through the loop: pytest tests/decoding/test_several_paths.py"""

from __future__ import annotations

import dataclasses
import functools

import by_definition
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import few
from tolerances import SMALL_LOGITS

from specdec.decoding import loop, several_paths
from specdec.drafters import Autoregressive, Committee, Hybrid, MultiPath, PromptLookup
from specdec.drafters.multi_path import _Depth, _likeliest
from specdec.models.contract import draft_tree
from specdec.models.contract.cache import KVCache
from specdec.models.contract.draft_tree import Nodes
from specdec.models.t5 import T5Config, T5Target
from specdec.sampling import Greedy, NoRepeatNGram, Processed, RepetitionPenalty, Sampling
from specdec.schedules import Fixed, Heuristic
from specdec.testing import Bench
from specdec.types import Draft
from specdec.verifiers import Block, Coupled, SpeculativeSampling, rounds

BENCH = Bench.create(rows=8_000)
FEW = 128
PENALTIES = (RepetitionPenalty(1.5), NoRepeatNGram(2))


def drafting(paths, sampling=Sampling(), bench=BENCH):  # noqa: B008 (frozen)
    return bench._replace(drafter=MultiPath(bench.target, sampling, paths=paths))


def measured(bench, verifier=Block(), sampling=Sampling()):  # noqa: B008 (frozen)
    return bench.compare(bench.run(verifier, Fixed(2), sampling).tokens, sampling)


def rate(output):
    return float(output.length.sum() / output.trace.calls.sum())


@pytest.mark.ci
@pytest.mark.parametrize(
    "verifier, paths",
    [
        (Block(), 3),
        pytest.param(SpeculativeSampling(), 3, marks=pytest.mark.ci),
        pytest.param(Block(), 2, marks=pytest.mark.slow),
    ],
)
def test_the_law_of_outputs(verifier, paths):
    result = measured(drafting(paths), verifier)
    assert result.passed and result.degrees > 20, str(result)


@pytest.mark.ci
def test_the_law_of_outputs_if_the_draft_is_broken():
    bench = drafting(3).broken()
    output = bench.run(Block(), Fixed(2), Sampling())
    assert int(output.trace.broken_drafts.sum())
    result = bench.compare(output.tokens, Sampling())
    assert result.passed, str(result)


@pytest.mark.ci
@pytest.mark.parametrize("sampling", few([Sampling(), Greedy()]))
def test_one_path_is_block_verification_token_by_token(sampling):
    own = BENCH._replace(drafter=Autoregressive(BENCH.target, sampling))
    ours, block = (x.run(Block(), Fixed(3), sampling, FEW) for x in (drafting(1, sampling), own))
    jax.tree.map(np.testing.assert_allclose, ours, block)  # log-probabilities up to rounding


@pytest.mark.slow
def test_a_tree_changes_no_output_and_keeps_no_fewer_tokens():
    bench = Bench.create(max_length=12)
    plain = bench.alone(Greedy(), FEW)
    calls = []
    for paths in (1, 3):
        output = drafting(paths, Greedy(), bench).run(Block(), Fixed(3), Greedy(), FEW)
        np.testing.assert_array_equal(output.tokens, plain.tokens)
        calls.append(output.trace.calls)
    assert bool(jnp.all(calls[1] <= calls[0])) and bool(jnp.any(calls[1] < calls[0]))


@pytest.mark.slow
@pytest.mark.parametrize("base", [Greedy(), Sampling()])
def test_processors_read_the_path_of_each_node(base):
    sampling = Processed(base, PENALTIES)
    bench = drafting(3, sampling, Bench.create(rows=8_000, max_length=5))
    output = bench.run(Block(), Fixed(3), sampling)
    if base.greedy:
        np.testing.assert_array_equal(output.tokens, bench.alone(sampling).tokens)
    else:
        result = bench.compare(output.tokens, sampling)
        assert result.passed, str(result)


@pytest.mark.parametrize("check", [by_definition.check_paths, by_definition.check_tree])
def test_texts_are_as_defined(check):
    """By position, history and prompt of each node, with rows that fail and rows that are full."""
    check()


STOP, SIZE, NOTHING = 1, 6, -1
WHOLE = [True] * 6


@pytest.mark.parametrize(
    "tokens, length, want, valid, broken",
    [
        ((2, 3, 4, 5, 0, 5), 3, 3, WHOLE, False),  # the first id there is, and the last
        ((2, 3, 4, 5, 0, 5), 2, 3, [True] * 4 + [False] * 2, False),
        ((2, 3, 4, 5, 0, 5), 3, 1, [True] * 2 + [False] * 4, False),
        ((2, 3, 4, 5, 0, 5), 3, 0, [False] * 6, False),
        ((2, 3, SIZE, 5, 0, 5), 3, 3, [True, True, False, True, False, True], True),
        ((2, -2, 4, 5, 0, 5), 3, 3, [True, False, True, False, True, False], True),
        ((2, NOTHING, 4, 5, 0, 5), 3, 3, [True, False, True, False, True, False], False),
        ((STOP, 3, 4, 5, 0, 5), 3, 3, [True, True, False, True, False, True], False),
        ((STOP, 3, SIZE, 5, 0, 5), 3, 3, [True, True, False, True, False, True], False),
        ((2, 3, 4, 5, SIZE, 5), 3, 2, [True] * 4 + [False] * 2, False),  # and is not wanted
    ],
)
def test_nodes_are_cut_to_what_can_be_verified(tokens, length, want, valid, broken):
    """Two paths of three tokens; a draft is broken where an unusable token would be next."""
    nodes = Nodes(jnp.array([[-1, -1, 0, 1, 2, 3]]), jnp.ones([1, 6], bool), 2)
    draft = Draft(jnp.array([tokens]), None, jnp.array([length]), nodes=nodes)
    cut = several_paths.trim(draft, jnp.array([want]), SIZE, (STOP,))
    assert cut.nodes is not None and cut.broken is not None
    assert cut.nodes.valid[0].tolist() == valid and cut.broken.tolist() == [broken]
    assert cut.tokens[0].tolist() == [x if own else 0 for x, own in zip(tokens, valid, strict=True)]


def test_the_likeliest_continuations_of_two_nodes():
    """The first node's likeliest token comes first, whatever its score, and all six have places."""
    rows = np.log([[0.1, 0.6, 0.3], [0.2, 0.3, 0.5]]).astype(np.float32)
    scores = np.log([[0.01, 0.9]]).astype(np.float32)
    last = _Depth(jnp.zeros([1, 2]), jnp.zeros([1, 2, 2], bool), jnp.asarray(scores), None)
    tokens, parents, own = _likeliest(jnp.asarray(rows[None]), last, 8, (2,))
    order = [(0, 1), (1, 2), (1, 1), (1, 0), (0, 2), (0, 0)]
    assert tokens[0].tolist() == [token for _, token in order] + [NOTHING] * 2
    assert parents[0, :6].tolist() == [parent for parent, _ in order]
    right = [-np.inf if x == 2 else rows[i, x] + scores[0, i] for i, x in order]
    np.testing.assert_allclose(own[0], [*right, -np.inf, -np.inf], rtol=1e-5)
    broken = jnp.full([1, 1, 3], jnp.nan)
    root = last._replace(scores=jnp.zeros([1, 1]))
    assert _likeliest(broken, root, 2, ())[0].tolist() == [[3, NOTHING]]  # no id that exists


@pytest.mark.slow
def test_a_row_does_not_depend_on_its_batch():
    bench = drafting(3)
    many, few = (bench.run(Block(), Fixed(2), Sampling(), rows) for rows in (FEW, 8))
    np.testing.assert_array_equal(many.tokens[:8], few.tokens)


def of_another_path(plant):
    """Each round starts with the target's own distribution, not with what the last one left."""
    real = rounds.remaining
    plant(rounds, "remaining", lambda d, s, _, kept: real(d, s, s.probs[kept], kept))


def dependent(plant):
    """All paths are drawn with the first one's keys."""
    real = loop.noise

    def noise(*args, **kwargs):
        made = real(*args, **kwargs)
        first = made.draft.reshape(3, -1)[0]
        return made._replace(draft=jnp.tile(first, 3))

    plant(loop, "noise", noise)


def off_by_one(plant):
    """Each node sees its neighbour's ancestors."""
    real = Nodes.ancestors
    plant(Nodes, "ancestors", lambda self: jnp.roll(real(self), 1, axis=1))


def wrong_path(plant):
    """The caches keep the next path's entries."""
    real = KVCache.keep
    plant(KVCache, "keep", lambda self, start, kept, n: real(self, start, (kept + 1) % n, n))


@pytest.mark.planted
@pytest.mark.ci
@pytest.mark.parametrize("wrong", few([of_another_path, dependent, off_by_one, wrong_path]))
def test_a_planted_bug_is_seen(plant, wrong):
    wrong(plant)
    result = measured(drafting(3))
    assert not result.passed, f"the planted bug was not seen: {result}"


SMALL = T5Config(
    vocab_size=11,
    emb_dim=8,
    num_heads=2,
    head_dim=4,
    mlp_dim=8,
    num_encoder_layers=1,
    num_decoder_layers=2,
)
PARENTS = jnp.array([[-1, -1, 1, 0, 2, 2]])
CHAINS = ([0], [1], [1, 2], [0, 3], [1, 2, 4], [1, 2, 5])


@functools.partial(jax.jit, static_argnums=0)
def node_logits(places):
    """Logits after the nodes of a tree of T5, by a call of all, by calls of a depth, and as text.

    `places` says where the nodes of a depth are, in place of `draft_tree.view`.
    """
    model = T5Target(SMALL)
    params = model.init(jax.random.key(0))
    inputs = jnp.array([[3, 4, 5, 1]])
    text, tokens = jnp.array([[0, 7, 2]]), jnp.array([[3, 4, 5, 6, 8, 9]])
    nodes = Nodes(PARENTS, jnp.ones([1, 6], bool), 2)
    before = model.decode(params, text[:, :2], model.prefill(params, inputs, 16))[1]
    block = jnp.concatenate([text[:, 2:], tokens], axis=1)
    whole = model.decode(params, block, before, ancestors=nodes.ancestors())[0].logits[0, 1:]
    cache = model.decode(params, text[:, 2:], before)[1]
    start, by_depth, alone = cache.length, [], []
    for depth in range(3):
        own = slice(2 * depth, 2 * depth + 2)
        seen = places(nodes.lead()[:, own], jnp.int32(depth), start, 16)
        output, cache = model.decode(params, tokens[:, own], cache, ancestors=seen)
        by_depth.append(output.logits[0])
    for node in range(6):
        chain = tokens[:, jnp.array(CHAINS[node])]
        alone.append(
            model.decode(params, jnp.append(text[:, 2:], chain, 1), before)[0].logits[0, -1]
        )
    return whole, jnp.concatenate(by_depth), jnp.stack(alone)


def run_on(lead, depth, start, capacity):
    """Gives each node the position of its slot, over all paths."""
    seen = draft_tree.view(lead, depth, start, capacity)
    slots = (start + depth * lead.shape[1])[:, None] + jnp.arange(lead.shape[1])[None]
    return seen._replace(queries=slots, keys=jnp.arange(capacity)[None])


@pytest.mark.slow
def test_a_node_is_scored_as_the_text_that_leads_to_it():
    whole, by_depth, alone = node_logits(draft_tree.view)
    np.testing.assert_allclose(whole, alone, atol=SMALL_LOGITS)
    np.testing.assert_allclose(by_depth, alone, atol=SMALL_LOGITS)


@pytest.mark.planted
@pytest.mark.ci
def test_positions_that_run_on_over_paths_are_seen():
    _, by_depth, alone = node_logits(run_on)
    assert np.abs(by_depth - alone).max() > 100 * SMALL_LOGITS


@dataclasses.dataclass(frozen=True)
class Unready(SpeculativeSampling):
    several_paths = False


@pytest.mark.parametrize(
    "change, message",
    [
        ({"verifier": Coupled()}, "MultiPath drafts 3 paths, but Coupled"),
        ({"verifier": Unready()}, "takes one; give Block"),
        ({"schedule": Heuristic()}, "lengths of Heuristic.* vary; give Fixed"),
        ({"sampling": Greedy(), "drafter": MultiPath(BENCH.target, Greedy(), paths=3)}, ""),
        (
            {"drafter": MultiPath(BENCH.target, Greedy(), paths=3)},
            "is greedy and sampling is Sampl",
        ),
    ],
)
def test_parts_that_take_no_paths_are_refused(change, message):
    plan = drafting(3).plan(Block(), Fixed(2), Sampling())
    if not message:
        dataclasses.replace(plan, **change)
        return
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(plan, **change)


def test_drafters_that_are_made_of_others_refuse_paths():
    paths = drafting(3).drafter
    with pytest.raises(ValueError, match="Hybrid.second .* 3 paths"):
        Hybrid(PromptLookup(), paths)
    with pytest.raises(ValueError, match="Committee.* 3 paths"):
        Committee((paths, Autoregressive(BENCH.target, Sampling(), role="other")), Sampling())
