"""Parts of an update with numbers by hand: pytest tests/training/test_parts_of_an_update.py"""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import tiny_t5

from specdec import checkpoints
from specdec.checkpoints import tables
from specdec.models.partitioning import Partitioner, make_mesh
from specdec.models.t5 import T5Target
from specdec.training import exits, laws, updates
from specdec.training.division import Division, micro_batches
from specdec.training.loss import Frozen, Pairs, Sums, TopLaws, cross_entropy, of_target
from specdec.training.objectives import fixed_key
from specdec.training.optimizer import Adafactor, LearningRate
from specdec.training.training_error import TrainingError
from specdec.training.updates import Recipe, State, abstract_state

MODEL = T5Target(tiny_t5(16, 16, 32, heads=2))
SGD = SimpleNamespace(transformation=lambda: optax.sgd(0.5))


def test_an_update_counts_a_step():
    state = State({"w": jnp.array([1.0, 2.0])}, optax.sgd(0.5).init({"w": 0}), jnp.int32(3))
    recipe = SimpleNamespace(optimizer=SGD, model=None)
    found = updates.applied(state, {"w": jnp.array([2.0, 4.0])}, recipe=recipe)
    assert found.params["w"].tolist() == [0, 0] and int(found.step) == 4


def test_micro_batches_take_turns_in_their_rows():
    rows = np.arange(12).reshape(6, 2)
    found = micro_batches(Pairs(rows, rows[:, 0]), 2)
    assert found.inputs[..., 0].tolist() == [[0, 4, 8], [2, 6, 10]]
    assert found.targets.tolist() == found.inputs[..., 0].tolist()


def test_gradients_of_micro_batches_are_those_of_all_tokens():
    """The loss of a row is w times its input, and it has as many tokens as its target says."""
    inputs, targets = jnp.array([[1.0], [2.0], [3.0], [6.0]]), jnp.array([[1], [0], [2], [1]])

    def loss(model, params, frozen, pairs, key, progress):
        tokens = jnp.sum(pairs.targets)
        return Sums(jnp.sum(params["w"] * pairs.inputs), jnp.int32(1), tokens)

    found = []
    for count in (1, 2):
        recipe = Recipe(
            MODEL, None, SimpleNamespace(loss=loss), Adafactor(LearningRate(0.1)), 0, 10, count
        )
        state = State({"w": jnp.float32(5)}, (), jnp.int32(0))
        gradient, sums = updates._gradient(state, Pairs(inputs, targets), None, recipe)
        found.append((float(gradient["w"]), float(sums.loss), int(sums.correct), int(sums.tokens)))
    assert found == [(12 / 4, 60, 1, 4), (12 / 4, 60, 2, 4)]


def test_a_layout_divides_parameters_and_what_is_shaped_like_them():
    divide = Partitioner(num_partitions=2)
    mesh = make_mesh(2)
    layout = Division(mesh)
    model = layout.divided(MODEL, divide)
    recipe = Recipe(model, None, None, Adafactor(LearningRate(0.1)), 0, 10, layout=layout)
    state = abstract_state(recipe)
    expected = layout.shardings(model)
    assert jax.tree.map(lambda x: x.sharding, state.params) == expected
    shapes = {x.shape for x in jax.tree.leaves(state.params)}
    others = [x for x in jax.tree.leaves(state.optimizer) if x.shape not in shapes]
    assert others and all(x.sharding == layout.whole for x in (*others, state.step))
    adam = optax.adam(0.1)
    (moments, _) = layout.like_parameters(jax.eval_shape(adam.init, state.params), adam, model)
    assert moments.mu == moments.nu == expected and moments.count == layout.whole
    params = {"w": np.arange(4.0)}
    placed = layout.placed(jax.tree.map(np.zeros_like, MODEL.init(jax.random.key(0))), model)
    assert jax.tree.map(lambda x: x.sharding, placed) == expected
    traced = jax.make_jaxpr(lambda tree: layout.kept(tree, model))(placed)
    names = {equation.primitive.name for equation in traced.eqns}
    assert names == {"sharding_constraint"} and len(traced.eqns) == len(jax.tree.leaves(placed))
    one = Division()
    assert one.placed(params, MODEL) is params and one.kept(params, MODEL) is params
    assert one.divided(MODEL, divide) is MODEL


def test_measurements_have_one_key_whatever_is_the_default():
    with jax.default_prng_impl("rbg"):
        assert str(jax.random.key_impl(fixed_key())) == "threefry2x32"


def test_stored_laws_are_of_the_likeliest_ids_and_the_rest(monkeypatch):
    probs = np.array([[[0.5, 0.125, 0.25, 0.125], [0.125, 0.125, 0.25, 0.5]]])
    monkeypatch.setattr(laws, "teacher_forced", lambda *given: jnp.log(jnp.asarray(probs)) + 3)
    found = laws.Asked(MODEL, (), top=2, temperature=1.0).program()({}, Pairs(0, 0))
    assert found.ids.tolist() == [[[0, 2], [3, 2]]]
    np.testing.assert_allclose(
        np.exp(found.log_probs), [[[0.5, 0.25, 0.25]] * 2], rtol=1e-6
    )  # of float32


def test_a_batch_gets_the_laws_of_its_own_texts(tmp_path):
    inputs, targets = np.array([[5], [6], [7]]), np.array([[2, 3, 1], [4, 1, 0], [0, 0, 0]])
    pairs = Pairs(inputs.astype(np.int32), targets.astype(np.int32))
    top = TopLaws(
        np.arange(9, dtype=np.int32).reshape(3, 3, 1),
        np.arange(18, dtype=np.float32).reshape(3, 3, 2),
    )
    tables.save(tmp_path / "00000", "laws", laws._made([pairs], [top], pad_id=0))
    stored = laws.StoredLaws([tmp_path / "00000"], pad_id=0)
    order = [1, 2, 0]
    found = stored.added_to(Pairs(pairs.inputs[order], pairs.targets[order])).laws
    assert found.ids[..., 0].tolist() == [[3, 4, 0], [0, 0, 0], [0, 1, 2]]
    assert found.log_probs[..., 1].tolist() == [[7, 9, 0], [0, 0, 0], [1, 3, 5]]


def test_a_model_reads_the_state_that_made_each_token():
    hidden = np.arange(1.0, 7).reshape(1, 3, 2)
    target = SimpleNamespace(
        prefill=lambda params, inputs, length: (params, inputs, length),
        decode=lambda params, text, cache: (SimpleNamespace(hidden=jnp.asarray(hidden)), None),
    )
    text = np.zeros([1, 3], np.int32)
    model = SimpleNamespace(encoded_dim=None, states_dim=2)
    cache, states = of_target(model, "inputs", text, Frozen(target, "params"))
    assert cache == ("params", "inputs", 3)
    assert states.tolist() == [[[0, 0], [1, 2], [3, 4]]]
    model.encoded_dim, model.states_dim = 4, None
    assert of_target(model, "inputs", text, Frozen(target, "params"), "cache") == ("cache", None)
    model.encoded_dim = None
    assert of_target(model, "inputs", text, None) == (None, None)


TABLE, HEAD = ("token_embedder", "embedding"), ("logits_dense", "kernel")


@pytest.mark.parametrize(
    "name, own, other, heads, found",
    [
        (("mlp", "kernel"), [[1, 2]], [[3, 4]], (None, None), [[3, 4]]),
        (("mlp", "kernel"), [[1, 2]], [[3, 4], [5, 6]], (None, None), [[1, 2]]),
        (TABLE, [[1], [2], [3]], [[4], [5]], (None, None), [[4], [5], [3]]),
        (TABLE, [[1], [2]], [[4], [5], [6]], (None, None), [[4], [5]]),
        (TABLE, [[1], [2]], [[4, 5], [6, 7]], (None, None), [[1], [2]]),  # of another width
        (HEAD, [[1, 2, 3]], [[4, 5]], (None, None), [[4, 5, 3]]),
        (HEAD, [[1, 2]], [[4, 5]], ((0, 3), (3, 7)), [[1, 4]]),
        (HEAD, [[1, 2]], [[4, 5]], ((3, 7), (3, 7)), [[4, 5]]),
        (HEAD, [[1, 2]], [[4, 5, 6, 7]], ((1, 3), None), [[5, 7]]),
        (HEAD, [[1, 2]], [[4], [5]], ((1, 3), None), [[1, 2]]),
    ],
)
def test_a_model_begins_with_the_entries_that_it_shares(
    monkeypatch, name, own, other, heads, found
):
    own, other = (jnp.array(x, jnp.float32) for x in (own, other))
    tree = {name[0]: {name[1]: own}, "rest": {"bias": jnp.zeros(1)}}
    monkeypatch.setattr(checkpoints, "load", lambda path: {name[0]: {name[1]: other}})
    monkeypatch.setattr(checkpoints, "model_from", lambda path: SimpleNamespace(head_ids=heads[1]))
    if found == own.tolist():
        with pytest.raises(TrainingError, match="^no array of a/b has the name and shape of one"):
            updates.begun_with(tree, "a/b", heads[0])
        return
    begun = updates.begun_with(tree, "a/b", heads[0])
    assert begun[name[0]][name[1]].tolist() == found
    assert begun["rest"]["bias"] is tree["rest"]["bias"]


def test_the_answers_of_a_classifier_are_weighed_alike():
    """One place that agrees, and two that do not, of which one is padding."""
    logits = jnp.array([[2.0, -1.0, 3.0, 9.0]])
    label, real = jnp.array([[True, False, False, True]]), jnp.array([[True, True, True, False]])
    loss, correct = exits._balanced(logits, label, real)
    yes, no = np.log1p(np.exp(-2.0)), (np.log1p(np.exp(-1.0)) + np.log1p(np.exp(3.0))) / 2
    np.testing.assert_allclose(loss, (yes + no) / 2, rtol=1e-6)  # of float32
    assert int(correct) == 2
    model = SimpleNamespace(num_layers=3)
    assert exits.exits_of(model, None) == (1, 2, 3)
    assert exits.exits_of(model, (2,)) == (2, 3) and exits.exits_of(model, (3, 1)) == (1, 3)


def test_the_loss_of_a_classifier_is_a_mean_over_exits(monkeypatch):
    """Both tokens are real; the first exit agrees in the first of them, the second in none."""
    chosen = [[0, 1], [1, 1], [0, 0]]
    outs = [SimpleNamespace(logits=jax.nn.one_hot(jnp.array([x]), 2), hidden=i) for i, x in
            enumerate(chosen)]  # fmt: skip
    monkeypatch.setattr(exits, "outputs", lambda *given: iter(outs))
    scores = {0: [[1.0, -2.0]], 1: [[-3.0, 4.0]]}
    model = SimpleNamespace(
        num_layers=3, pad_id=0, exit_logits=lambda params, hidden: jnp.array(scores[hidden])
    )
    pairs = Pairs(np.zeros([1, 1], np.int32), np.array([[5, 1]], np.int32))
    sums = exits.ExitClassifier().sums((model, {}, None), pairs, 0.0, None)

    def soft(x):
        return np.log1p(np.exp(x))

    first = (soft(-1.0) + soft(-2.0)) / 2  # agrees, does not
    second = (0 + (soft(-3.0) + soft(4.0)) / 2) / 2  # no place agrees
    np.testing.assert_allclose(sums.loss, (first + second) / 2 * 2, rtol=1e-6)  # of float32
    assert (int(sums.correct), int(sums.tokens)) == ((2 + 1) // 2, 2)


def test_labels_are_not_smoothed_unless_that_is_asked_for():
    logits = jnp.log(jnp.array([[[0.25, 0.5, 0.25], [0.125, 0.125, 0.75], [1.0, 1.0, 1.0]]]))
    found = cross_entropy(logits, jnp.array([[1, 1, 0]]), 0)
    assert float(found.loss) == pytest.approx(4 * np.log(2), rel=1e-6)
    assert (int(found.correct), int(found.tokens)) == (1, 2)
