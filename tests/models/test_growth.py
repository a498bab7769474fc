"""Stand-ins for what cannot be downloaded, grown models and synthetic acceptance: pytest
tests/models/test_growth.py"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from support import tiny_t5

from specdec import checkpoints, cli, testing, verifiers
from specdec.checkpoints import Vocabulary
from specdec.cli import grow as command
from specdec.decoding import autoregressive_decode, decode, row_keys
from specdec.drafters import Blockwise, Masked
from specdec.models import families
from specdec.models.heads import Heads, HeadsConfig
from specdec.models.sizes.growing import Difference
from specdec.models.t5 import T5Config, T5Draft, T5DraftConfig, T5Target
from specdec.models.t5.growth import T5Growth
from specdec.plan import Plan
from specdec.sampling import Greedy
from specdec.schedules import Fixed, ForeseenCost
from specdec.types import Draft, Noise, Params, Scores
from specdec.verifiers import SyntheticAcceptance

pytestmark = pytest.mark.ci

# Every size grows, by even and by odd numbers, and to no multiple.
TIED = tiny_t5(
    30, 12, 10, head_dim=4, decoder=2, mlp_activations=("relu",), logits_via_embedding=True
)
UNTIED = dataclasses.replace(
    TIED,
    mlp_activations=("gelu", "linear"),
    logits_via_embedding=False,
    relative_bias_per_layer=True,
)
TIED_GROWN = dataclasses.replace(
    TIED,
    emb_dim=29,
    num_heads=3,
    head_dim=7,
    mlp_dim=15,
    num_encoder_layers=2,
    num_decoder_layers=3,
)
UNTIED_GROWN = dataclasses.replace(
    UNTIED,
    vocab_size=45,
    emb_dim=20,
    num_heads=5,
    head_dim=6,
    mlp_dim=13,
    num_encoder_layers=3,
    num_decoder_layers=3,
)
TINY = dataclasses.replace(TIED, num_encoder_layers=1, num_decoder_layers=1)
TOLERANCE = 1e-4  # of the logits' standard deviation; float32, and twins of ordinary size
SAME = pytest.approx(0, abs=TOLERANCE)
KEY = jax.random.key(7)


@functools.partial(jax.jit, static_argnums=(1, 2))  # one program, not hundreds of small ones
def grow(params, config, to, key):
    return families.growth_of(config).grow(params, config, to, key)


def logit_difference(params, config, *others, **grown_by) -> Difference:
    return families.growth_of(config).logit_difference(params, config, *others, **grown_by)


@functools.cache
def trained(config: T5Config) -> dict:
    """Random parameters: the norms' scales are not the 1 that they begin as, and what the layers
    add outweighs the table, which on its own would repeat each token for ever."""
    params = jax.jit(families.model_of(config).init)(jax.random.key(1))
    flat = traverse_util.flatten_dict(params)
    for path, leaf in flat.items():
        if path[-1] == "scale":
            flat[path] = leaf * jax.random.uniform(jax.random.key(2), leaf.shape, None, 0.5, 1.5)
        elif path[-2] in ("wo", "out"):
            flat[path] = 4 * leaf
    return traverse_util.unflatten_dict(flat)


@pytest.fixture(scope="module")
def tied():
    params = trained(TIED)
    return params, grow(params, TIED, TIED_GROWN, jax.random.key(3))


@pytest.fixture(scope="module")
def untied():
    params = trained(UNTIED)
    return params, grow(params, UNTIED, UNTIED_GROWN, jax.random.key(3))


MODELS = {"tied": (TIED, TIED_GROWN), "untied": (UNTIED, UNTIED_GROWN)}


def relative(difference: Difference) -> float:
    return difference.largest / difference.spread


either = pytest.mark.parametrize("name", ["tied", pytest.param("untied", marks=pytest.mark.slow)])


@either
def test_a_grown_model_computes_the_same(name, request):
    params, grown = request.getfixturevalue(name)
    config, to = MODELS[name]
    assert relative(logit_difference(params, config, grown, to, KEY)) == SAME


def test_added_weights_have_the_scale_of_t5(tied):
    layer = traverse_util.flatten_dict(tied[1]["decoder"]["layers_1"])
    for path, leaf in layer.items():
        if path[-1] == "kernel":
            dims = TIED_GROWN.head_dim if path[-2] == "query" else 1
            assert 0.8 < np.std(leaf) * np.sqrt(leaf.shape[0] * dims) < 1.25, path


@pytest.mark.slow
def test_greedy_texts_are_the_same_and_added_ids_never_win(untied):
    params, grown = untied
    inputs = jax.random.randint(jax.random.key(4), (32, 7), 1, UNTIED.vocab_size)
    texts = [
        autoregressive_decode(
            params,
            row_keys(0, jnp.arange(32)),
            inputs,
            target=T5Target(config),
            sampling=Greedy(),
            max_length=10,
        ).tokens
        for params, config in ((params, UNTIED), (grown, UNTIED_GROWN))
    ]
    assert len(np.unique(texts[0], axis=0)) > 16
    np.testing.assert_array_equal(*texts)


def test_growing_to_the_same_size_changes_nothing():
    params = trained(TINY)
    same = grow(params, TINY, TINY, KEY)
    for before, after in zip(jax.tree.leaves(params), jax.tree.leaves(same), strict=True):
        # Scaled and scaled back: two roundings. 1.6e-7 on an AMD EPYC (Zen 5) with AVX-512.
        np.testing.assert_allclose(before, after, rtol=4e-7)


def test_weights_keep_their_dtype(tied):
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), tied[0])
    grown = jax.eval_shape(lambda params: grow(params, TIED, TIED_GROWN, KEY), half)
    assert {leaf.dtype for leaf in jax.tree.leaves(grown)} == {jnp.dtype("bfloat16")}


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"emb_dim": 8}, "emb_dim is 12 and would become 8; a model only grows"),
        ({"num_decoder_layers": 1}, "num_decoder_layers is 2 and would become 1"),
        ({"vocab_size": 29}, "vocab_size is 30 and would become 29"),
        ({"mlp_activations": ("gelu",)}, r"mlp_activations is \('relu',\) and would become"),
        ({"logits_via_embedding": False}, "logits_via_embedding is True and would become False"),
        ({"layer_norm_epsilon": 1e-5}, "layer_norm_epsilon is 1e-06 and would become 1e-05"),
        ({"relative_attention_num_buckets": 64}, "num_buckets is 32 and would become 64"),
    ],
)
def test_what_cannot_grow_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        families.growth_of(TIED).grow({}, TIED, dataclasses.replace(TIED, **changes), KEY)


# Synthetic acceptance.

ROWS, LONGEST = 20_000, 5


def verdicts(verifier, length: int = LONGEST) -> tuple[np.ndarray, np.ndarray]:
    """Over 20,000 rows: how many tokens are kept of a draft that the target finds impossible, and
    the token after them, which for n kept ones the target has to be 1 + n."""
    draft = Draft(jnp.zeros(LONGEST, jnp.int32), None, jnp.array(length))
    probs = jax.nn.one_hot(1 + jnp.arange(LONGEST + 1), 8)
    scores = Scores(jnp.log(probs), probs)

    @jax.jit
    @jax.vmap
    def decide(key):
        keys = jax.random.split(key, (3, LONGEST + 1))
        noise = Noise(keys[0, :-1], keys[1, :-1], keys[2])
        return verifiers.verdict(verifier, noise, draft, scores)

    kept, following = decide(jax.random.split(jax.random.key(11), ROWS))
    return np.asarray(kept), np.asarray(following)


def follows(kept: np.ndarray, alpha: float, length: int = LONGEST) -> testing.Comparison:
    """Against the geometric law, cut off at the draft's length; wrongly rejected once in 1e9."""
    lengths = np.arange(length + 1)
    law = alpha**lengths * np.where(lengths < length, 1 - alpha, 1.0)
    return testing.compare(testing.Law(lengths[:, None].astype(np.int32), law), kept[:, None])


@pytest.mark.parametrize("alpha, length", [(0.3, 5), (0.8, 5), (0.8, 2)])
def test_lengths_are_geometric(alpha, length):
    kept, following = verdicts(SyntheticAcceptance(alpha), length)
    comparison = follows(kept, alpha, length)
    assert comparison.passed, comparison
    assert comparison.detectable_tv < 0.05
    np.testing.assert_array_equal(following, 1 + kept)


def test_none_and_all():
    assert (verdicts(SyntheticAcceptance(0))[0] == 0).all()
    assert (verdicts(SyntheticAcceptance(1))[0] == LONGEST).all()
    assert (verdicts(SyntheticAcceptance(1), 3)[0] == 3).all()


def test_it_says_that_it_is_not_exact():
    assert "alpha=0.5: NOT EXACT" in repr(SyntheticAcceptance(0.5))
    assert "NOT EXACT" in (SyntheticAcceptance.__doc__ or "")


@pytest.mark.parametrize("alpha", [-0.1, 1.5, float("nan")])
def test_a_rate_that_is_none_is_refused(alpha):
    with pytest.raises(ValueError, match="SyntheticAcceptance.alpha is .*; give"):
        SyntheticAcceptance(alpha)


def test_texts_without_an_end_have_the_whole_length():
    target = testing.TableTarget(4)
    params = target.init(jax.random.key(0))
    params = {"logits": params["logits"].at[..., 1].set(9)}  # EOS, always
    drafter, verifier = testing.Constant(token=2), SyntheticAcceptance(0.6)
    plan = Plan(target, drafter, verifier, Fixed(3), Greedy(), max_length=40, stop_ids=())
    inputs = jnp.ones([64, 2], jnp.int32)
    output = decode(Params(params), row_keys(0, jnp.arange(64)), inputs, plan)
    assert (output.length == 40).all()
    kept = np.sum(output.trace.accepted)
    assert (np.sum(np.asarray(output.tokens) == 2)) == kept
    per_call = kept / np.sum(output.trace.drafted > 0)
    assert abs(per_call - (0.6 + 0.6**2 + 0.6**3)) < 0.15


# The command.


@pytest.fixture(scope="module")
def saved(tied, tmp_path_factory):
    folder = tmp_path_factory.mktemp("small") / "model"
    checkpoints.save(folder, tied[0], config=TIED, vocabulary=Vocabulary(None, 3))
    return folder


def test_the_command_writes_a_grown_checkpoint(saved, tied, tmp_path, capsys, monkeypatch):
    # The preset's own vocabulary, activations and logits are not taken.
    sizes = dataclasses.replace(TIED_GROWN, vocab_size=99, mlp_activations=("gelu", "linear"))
    monkeypatch.setattr(command, "preset", lambda flag, name, model: T5Target(sizes))
    monkeypatch.setattr(T5Growth, "grow", jax.jit(T5Growth.grow, static_argnums=(0, 2, 3)))
    argv = ["grow", f"--input={saved}", "--preset=t5", f"--output={tmp_path / 'large'}"]
    assert cli.main([*argv, "--seed=3"]) == 0
    out = capsys.readouterr().out
    assert "3,248 parameters (emb_dim 12, num_heads 2," in out
    assert "(emb_dim 29, num_heads 3," in out
    assert "logits of random texts differ by at most" in out
    assert checkpoints.config_from(tmp_path / "large") == TIED_GROWN
    assert checkpoints.vocabulary_from(tmp_path / "large") == Vocabulary(None, 3)
    grown = checkpoints.load(tmp_path / "large")
    assert relative(logit_difference(tied[0], TIED, grown, TIED_GROWN, KEY)) == SAME
    assert cli.main(argv) == 2
    assert "exists; give a new directory" in capsys.readouterr().err


def test_the_command_refuses_in_one_line(saved, tmp_path, capsys, monkeypatch):
    wide = dataclasses.replace(TIED, emb_dim=800)
    monkeypatch.setattr(checkpoints, "model_from", lambda path: T5Target(wide))
    argv = ["grow", f"--input={saved}", "--preset=t5_1_1_base", f"--output={tmp_path / 'large'}"]
    assert cli.main(argv) == 2
    out, err = capsys.readouterr()
    message = "does not grow to t5_1_1_base: T5Config.emb_dim is 800 and would become"
    assert not out and err.count("\n") == 1 and message in err
    assert not (tmp_path / "large").exists()


@either
def test_a_drafter_grows_with_the_target_that_it_reads(name, request):
    (config, to), (small, large) = MODELS[name], request.getfixturevalue(name)
    reading = T5DraftConfig.of(
        config,
        vocab_size=33,
        emb_dim=8,
        num_encoder_layers=0,
        encoded_dim=12,
        states_dim=12,
        markov_rank=4,
        confidence_head=True,
    )
    larger = families.growth_of(reading).resized(reading, to)
    assert (larger.num_encoder_layers, larger.num_decoder_layers) == (0, 2)
    assert (larger.emb_dim, larger.encoded_dim, larger.states_dim) == (to.emb_dim,) * 3
    own = trained(reading)
    own["decoder"]["markov_dense"]["kernel"] *= 20
    own["decoder"]["confidence_head"]["weight"] = jax.random.normal(KEY, [8])
    grown = grow(own, reading, larger, jax.random.key(3))
    given = own, reading, grown, larger, KEY
    assert relative(logit_difference(*given, grown_by=jax.random.key(3))) == SAME
    assert relative(logit_difference(*given, grown_by=jax.random.key(4))) > 10 * TOLERANCE
    inputs = jax.random.randint(KEY, (4, 6), 2, 30)

    def run(target, drafter, params):
        kept = verifiers.MinimumBlock(verifiers.GreedyMatch(), 1)
        masked = Masked(T5Draft(drafter), Greedy(), 3)
        cuts = ForeseenCost(0.3, (1.0, 1.2, 1.5), buckets=(1, 2, 3))
        plan = Plan(T5Target(target), masked, kept, cuts, Greedy(), 20, ())
        return decode(Params(*params), row_keys(0, jnp.arange(4)), inputs, plan)

    before = run(config, reading, (small, own))
    after = run(dataclasses.replace(to, vocab_size=30), larger, (cut(large, name), grown))
    assert jax.tree.all(jax.tree.map(lambda x, y: jnp.all(x == y), before[:2], after[:2]))
    np.testing.assert_array_equal(before.trace.proposed, after.trace.proposed)
    assert np.unique(before.trace.proposed).size > 5
    np.testing.assert_array_equal(before.trace.drafted, after.trace.drafted)
    assert np.unique(before.trace.drafted[:, :5]).size > 1


def cut(params, name):
    """Without the ids that were added."""
    if name == "tied":
        return params
    head = params["decoder"]["logits_dense"]["kernel"][:, :30]
    decoder = params["decoder"] | {"logits_dense": {"kernel": head}}
    table = params["token_embedder"]["embedding"][:30]
    return {**params, "decoder": decoder, "token_embedder": {"embedding": table}}


HEADS = HeadsConfig(vocab_size=30, states_dim=12, heads=3, mlp_dim=10)


def heads_of(config: HeadsConfig) -> dict:
    """Random, and with something to say: as they are made they repeat the target's own next."""
    params = Heads(config).init(jax.random.key(9))
    return params | {"wo": 60 * params["wo"]}


@either
def test_heads_grow_with_the_target_whose_states_they_read(name, request):
    (config, to), (small, large) = MODELS[name], request.getfixturevalue(name)
    own, larger = heads_of(HEADS), families.resized(HEADS, to)
    assert (larger.states_dim, larger.mlp_dim, larger.heads) == (to.emb_dim, to.mlp_dim, 3)
    grown = families.resize(own, HEADS, to, jax.random.key(3))
    assert all(np.count_nonzero(leaf) == leaf.size for leaf in jax.tree.leaves(grown))
    given = own, HEADS, grown, larger, KEY
    found = logit_difference(*given, grown_by=jax.random.key(3))
    assert relative(found) == SAME and str(found).startswith("states of random texts differ")
    assert relative(logit_difference(*given, grown_by=jax.random.key(4))) > 0.1
    inputs = jax.random.randint(KEY, (4, 6), 2, 30)

    def run(target, heads, params):
        kept = verifiers.MinimumBlock(verifiers.GreedyMatch(), 1)
        plan = Plan(
            T5Target(target), Blockwise(Heads(heads), Greedy()), kept, Fixed(3), Greedy(), 20
        )
        return decode(Params(*params), row_keys(0, jnp.arange(4)), inputs, plan)

    before = run(config, HEADS, (small, own))
    after = run(dataclasses.replace(to, vocab_size=30), larger, (cut(large, name), grown))
    np.testing.assert_array_equal(before.trace.proposed, after.trace.proposed)
    assert np.unique(before.trace.proposed).size > 5
    np.testing.assert_array_equal(before.tokens, after.tokens)


@pytest.mark.parametrize(
    "heads, message",
    [
        ({"states_dim": 30}, "HeadsConfig.states_dim is 30 and would become 29; a model"),
        ({"mlp_dim": 16}, "HeadsConfig.mlp_dim is 16 and would become 15; a model only"),
        ({"activation": "gelu"}, "HeadsConfig.activation is 'gelu', and states of a grown target"),
    ],
)
def test_heads_that_cannot_grow_are_refused(heads, message):
    with pytest.raises(ValueError, match=message):
        families.resized(dataclasses.replace(HEADS, **heads), TIED_GROWN)


def test_heads_grow_by_the_command_to_the_sizes_of_a_t5(tmp_path, capsys):
    checkpoints.save(tmp_path / "small", heads_of(HEADS), config=HEADS)
    argv = ["grow", f"--input={tmp_path / 'small'}", f"--output={tmp_path / 'large'}"]
    assert cli.main([*argv, "--preset=t5_1_1_small"]) == 0
    assert "states of random texts differ by at most" in capsys.readouterr().out
    assert checkpoints.config_from(tmp_path / "large") == dataclasses.replace(
        HEADS, states_dim=512, mlp_dim=1024
    )


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"encoded_dim": None, "num_encoder_layers": 1}, "encoded_dim is 12 and would become None"),
        ({"vocab_size": 40}, "vocab_size is 33 and would become 40; a model that fills in masks"),
        ({"states_dim": 8}, "states_dim is 12 and would become 8; a model only grows"),
    ],
)
def test_a_drafter_that_cannot_grow_is_refused(changes, message):
    reading = T5DraftConfig.of(
        UNTIED,
        vocab_size=33,
        num_encoder_layers=0,
        encoded_dim=12,
        states_dim=12,
        markov_rank=4,
    )
    with pytest.raises(ValueError, match=message):
        families.growth_of(reading).check_growth(reading, dataclasses.replace(reading, **changes))
