"""Several paths and trees through the loop: pytest tests/decoding/test_several_paths.py"""

from __future__ import annotations

import dataclasses

import by_definition
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import tiny_t5
from tolerances import SMALL_LOGITS

from specdec.decoding import several_paths
from specdec.drafters import Autoregressive, Committee, Hybrid, MultiPath, PromptLookup
from specdec.drafters.multi_path import _Depth, _likeliest
from specdec.models.contract import draft_tree
from specdec.models.contract.draft_tree import Nodes
from specdec.models.t5 import T5Target
from specdec.sampling import Greedy, Sampling
from specdec.schedules import Fixed, Heuristic
from specdec.testing import Bench
from specdec.types import Draft
from specdec.verifiers import Block, Coupled, SpeculativeSampling, decide

BENCH = Bench.create(rows=8_000)
FEW = 128


def drafting(paths, sampling=Sampling(), bench=BENCH):  # noqa: B008 (frozen)
    return bench._replace(drafter=MultiPath(bench.target, sampling, paths=paths))


def measured(bench, verifier=Block(), sampling=Sampling()):  # noqa: B008 (frozen)
    return bench.compare(bench.run(verifier, Fixed(2), sampling).tokens, sampling)


@pytest.mark.ci
@pytest.mark.parametrize("verifier", [Block(), SpeculativeSampling()], ids=str)
def test_the_law_of_outputs(verifier):
    result = measured(drafting(3), verifier)
    assert result.passed and result.degrees > 20, str(result)


@pytest.mark.ci
def test_the_law_of_outputs_if_the_draft_is_broken():
    bench = drafting(3).broken()
    output = bench.run(Block(), Fixed(2), Sampling())
    assert int(output.trace.broken_drafts.sum())
    result = bench.compare(output.tokens, Sampling())
    assert result.passed, str(result)


@pytest.mark.ci
def test_one_path_is_block_verification_token_by_token():
    sampling = Sampling()
    own = BENCH._replace(drafter=Autoregressive(BENCH.target, sampling))
    ours, block = (x.run(Block(), Fixed(3), sampling, FEW) for x in (drafting(1, sampling), own))
    jax.tree.map(np.testing.assert_allclose, ours, block)  # log-probabilities up to rounding


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


SMALL = tiny_t5(11, 8, head_dim=4, decoder=2)
PARENTS = jnp.array([[-1, -1, 1, 0, 2, 2]])
CHAINS = ([0], [1], [1, 2], [0, 3], [1, 2, 4], [1, 2, 5])


@jax.jit
def node_logits():
    """Logits after the nodes of a tree of T5: of all at once, depth by depth, and as text."""
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
        seen = draft_tree.view(nodes.lead()[:, own], jnp.int32(depth), start, 16)
        output, cache = model.decode(params, tokens[:, own], cache, ancestors=seen)
        by_depth.append(output.logits[0])
    for node in range(6):
        chain = tokens[:, jnp.array(CHAINS[node])]
        alone.append(
            model.decode(params, jnp.append(text[:, 2:], chain, 1), before)[0].logits[0, -1]
        )
    return whole, jnp.concatenate(by_depth), jnp.stack(alone)


@pytest.mark.planted
@pytest.mark.ci
def test_rounds_that_begin_with_the_targets_own_distribution_are_seen(plant):
    real = decide.remaining
    plant(decide, "remaining", lambda d, s, _, kept: real(d, s, s.probs[kept], kept))
    result = measured(drafting(3))
    assert not result.passed, str(result)


@pytest.mark.ci
def test_a_node_is_scored_as_the_text_that_leads_to_it():
    whole, by_depth, alone = node_logits()
    np.testing.assert_allclose(whole, alone, atol=SMALL_LOGITS)
    np.testing.assert_allclose(by_depth, alone, atol=SMALL_LOGITS)


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
