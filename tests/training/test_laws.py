"""A target's laws, stored once, and kept tokens: pytest tests/training/test_laws.py"""

from __future__ import annotations

import dataclasses
import os
import random
import socket
import subprocess
import sys
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import tiny_t5
from tolerances import LOGITS

from specdec import checkpoints, tasks, training
from specdec.checkpoints import tables
from specdec.common.records import RecordsError
from specdec.models import partitioning
from specdec.models.t5 import T5Target
from specdec.predict import hlo
from specdec.testing import TableTarget
from specdec.training import Align, Frozen, Pairs, TrainingError, TrainRun, laws
from specdec.training.alignment import highest
from specdec.training.division import Division
from specdec.training.training_batches import TokenPair, pack
from specdec.training.training_loop import _laws as laws_of_run

pytestmark = pytest.mark.ci

V = 9
TARGET, DRAFT = TableTarget(V), TableTarget(V + 1)
CONFIG = tiny_t5(259, 16, 24)
LENGTHS = {"inputs": 6, "targets": 5}
FORWARD = {"forward_kl": 1.0}


def examples(count: int = 10) -> list[TokenPair]:
    """Of 1 to 5 tokens."""
    draw = random.Random(0)

    def text(longest: int) -> np.ndarray:
        return np.array([draw.randint(2, V - 1) for _ in range(draw.randint(1, longest))], np.int32)

    return [TokenPair(text(6), text(5)) for _ in range(count)]


def batches(texts: list[TokenPair]) -> list[Pairs]:
    return pack(texts, LENGTHS, 4, 2, pad_id=0)


def asked(top: int, temperature: float = 1.0) -> laws.Asked:
    return laws.Asked(TARGET, TARGET.init(jax.random.key(0)), top, temperature)


def stored(path, top: int, temperature: float = 1.0, count: int = 10) -> laws.StoredLaws:
    return laws.stored(path, asked(top, temperature), {"target": "a"}, examples(count), batches)


@pytest.mark.parametrize("top", [1, 3, V - 1])
def test_laws_are_the_likeliest_ids_and_the_rest(tmp_path, top):
    found, given = stored(tmp_path, top, 0.7), asked(top)
    for pairs in batches(examples()):
        ids, log_probs = found.added_to(pairs).laws
        logits = np.asarray(training.teacher_forced(TARGET, given.params, pairs), np.float64) / 0.7
        law = np.exp(logits - logits.max(-1, keepdims=True))
        law /= law.sum(-1, keepdims=True)
        real = pairs.targets > 0
        assert (np.sort(law, -1)[..., ::-1][..., 0] > 0).all() and real.any()
        right = np.sort(law, axis=-1)[..., ::-1][..., :top]
        np.testing.assert_allclose(np.exp(log_probs[real][:, :-1]), right[real], rtol=1e-4)
        np.testing.assert_allclose(
            np.exp(log_probs[real][:, -1]), 1 - right[real].sum(-1), rtol=1e-3
        )
        assert (np.take_along_axis(law, ids, -1)[real][:, 0] == law.max(-1)[real]).all()
        assert not ids[~real].any() and not log_probs[~real].any()


def test_all_ids_but_one_are_the_whole_law(tmp_path):
    """Then the rest is one id, and loss and gradient are those of the target as it runs."""
    found, objective = stored(tmp_path, V - 1), Align(FORWARD, top=V - 1)
    frozen = Frozen(TARGET, asked(1).params)
    params = DRAFT.init(jax.random.key(5))

    def loss(params, pairs):
        return objective.loss(DRAFT, params, frozen, pairs, jax.random.key(0), jnp.float32(0)).loss

    for pairs in batches(examples()):
        right, slope = jax.value_and_grad(loss)(params, pairs)
        value, found_slope = jax.value_and_grad(loss)(params, found.added_to(pairs))
        np.testing.assert_allclose(value, right, rtol=1e-5)
        for a, b in zip(*map(jax.tree.leaves, (found_slope, slope)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)  # sums in another order


def test_few_ids_say_less(tmp_path):
    """Distances of whole laws are no less than those of their parts; the likeliest token is known
    however flat the law is."""
    frozen, params = Frozen(TARGET, asked(1).params), DRAFT.init(jax.random.key(5))
    whole, part, best = (
        Align({name: 1.0}, temperature=4.0, top=1)
        for name in ("total_variation",) * 2 + ("greedy",)
    )
    found = stored(tmp_path, 1, temperature=4.0)
    for pairs in batches(examples()):
        key, now = jax.random.key(0), jnp.float32(0)
        right = whole.loss(DRAFT, params, frozen, pairs, key, now)
        less = part.loss(DRAFT, params, frozen, found.added_to(pairs), key, now)
        assert 0 < less.loss < right.loss
        assert (less.correct, less.tokens) == (right.correct, right.tokens)
        told = [
            best.loss(DRAFT, params, frozen, x, key, now) for x in (pairs, found.added_to(pairs))
        ]
        np.testing.assert_allclose(told[0].loss, told[1].loss, rtol=1e-5)


def test_what_was_interrupted_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(laws, "TEXTS", 4)
    made, save = [], tables.save

    def saved(path, *args):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(path.name)
        save(path, *args)

    monkeypatch.setattr(tables, "save", saved)
    with pytest.raises(KeyboardInterrupt):
        stored(tmp_path, 2)
    monkeypatch.setattr(
        tables, "save", lambda path, *args: (made.append(path.name), save(path, *args))
    )
    found = stored(tmp_path, 2)
    assert made == ["00000", "00001", "00002"]
    assert stored(tmp_path, 2) and len(made) == 3  # nothing is made again
    monkeypatch.setattr(laws, "TEXTS", 4096)
    once = stored(tmp_path.with_name("once"), 2)
    for pairs in batches(examples()):
        for a, b in zip(found.added_to(pairs).laws, once.added_to(pairs).laws, strict=True):
            np.testing.assert_array_equal(a, b)


def test_no_more_than_a_table_is_in_memory(tmp_path, monkeypatch):
    """Neither the texts nor what is stored of them."""
    monkeypatch.setattr(laws, "TEXTS", 4)
    alive, most = [0, 0], [0, 0]  # texts, and tables

    def counted(thing, kind):
        alive[kind] += 1
        most[kind] = max(most[kind], alive[kind])
        weakref.finalize(thing, lambda: alive.__setitem__(kind, alive[kind] - 1))

    def given():
        for example in examples(40):
            inputs = example.inputs.copy()
            counted(inputs, 0)
            yield TokenPair(inputs, example.targets)

    made = laws._made

    def makes(*given):
        found = made(*given)
        counted(found["ids"], 1)
        return found

    monkeypatch.setattr(laws, "_made", makes)
    found = laws.stored(tmp_path, asked(2), {}, given(), batches)
    assert most == [2 * 4, 1], "texts of the table before are let go while others are read"
    assert len(list(tmp_path.glob("0*"))) == 10 and alive == [0, 0]
    once = stored(tmp_path.with_name("once"), 2, count=40)
    for pairs in batches(examples(40)):
        for a, b in zip(found.added_to(pairs).laws, once.added_to(pairs).laws, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_folder_of_larger_tables_goes_on(tmp_path, monkeypatch):
    """Tables have as many texts as they were made with; one without tokens needs none."""
    monkeypatch.setattr(laws, "TEXTS", 7)
    stored(tmp_path, 2, count=7)
    monkeypatch.setattr(laws, "TEXTS", 2)
    texts = [*examples(), TokenPair(np.array([2], np.int32), np.zeros(0, np.int32))]
    laws.stored(tmp_path, asked(2), {"target": "a"}, texts, batches)
    sizes = [len(np.load(path / "lengths.npy")) for path in sorted(tmp_path.glob("0*"))]
    assert sizes == [7, 2, 1]


def test_a_text_that_is_not_stored_is_one_line(tmp_path):
    found = stored(tmp_path, 2)
    (other,) = batches([TokenPair(np.array([2], np.int32), np.array([3] * 5, np.int32))])
    with pytest.raises(TrainingError, match="has not all texts of the split.*delete that folder"):
        found.added_to(other)


DIVIDED = T5Target(tiny_t5(64, 16, 32, heads=8, head_dim=2, decoder=2, encoder=2))


TEXTS_OF_MESHES = 30  # the last batch has rows of padding


def over(mesh, path) -> laws.StoredLaws:
    """Stores a target's distributions over a mesh, in batches of 8."""
    rules = partitioning.standard_logical_axis_rules() if mesh else ()
    model = dataclasses.replace(DIVIDED, axis_rules=rules)
    params = jax.jit(model.init)(jax.random.key(0))
    params = jax.tree.map(lambda x: 2 * x, params)  # distributions are not flat
    if mesh:
        params = jax.device_put(params, partitioning.shardings(model, mesh))
    given = laws.Asked(model, params, 5, 1.0, Division(mesh))
    packed = lambda texts: pack(texts, LENGTHS, 8, 2, pad_id=0)  # noqa: E731
    texts = examples(TEXTS_OF_MESHES)
    return laws.stored(path, given, {}, texts, packed)


def assert_same_laws(one, other) -> None:
    """The same texts and ids, and log-probabilities but for the order of sums."""
    for path in sorted(one.glob("0*")):
        first, second = (tables.mapped(folder / path.name, laws.KIND) for folder in (one, other))
        for name in ("texts", "lengths", "ids"):
            np.testing.assert_array_equal(first[name], second[name])
        low = laws.NOTHING / 2  # what has no probability
        a, b = (np.maximum(x["log_probs"], low) for x in (first, second))
        np.testing.assert_allclose(a, b, rtol=0, atol=LOGITS)


@pytest.mark.slow
@pytest.mark.parametrize("parts", [2, 4])
def test_a_mesh_stores_what_one_device_does(tmp_path, parts, monkeypatch):
    """The target stays divided, and of its distributions only the stored numbers are fetched."""
    monkeypatch.setattr(laws, "TEXTS", 16)
    mesh, programs, fetched = partitioning.make_mesh(parts), [], []
    add, get = laws._add, jax.device_get

    def looked_at(table, asked, program, batches):
        programs.append((asked, program, asked.layout.rows(batches[0])))
        add(table, asked, program, batches)

    monkeypatch.setattr(laws, "_add", looked_at)
    monkeypatch.setattr(jax, "device_get", lambda tree: fetched.append(tree) or get(tree))
    with jax.set_mesh(mesh):
        over(mesh, tmp_path / "mesh")
        asked, jitted, pairs = programs[0]
        program = jitted.lower(asked.params, pairs).compile()
    monkeypatch.undo()
    monkeypatch.setattr(laws, "TEXTS", 16)
    over(None, tmp_path / "one")
    assert_same_laws(tmp_path / "one", tmp_path / "mesh")
    widths = {leaf.shape[-1] for tree in fetched for leaf in jax.tree.leaves(tree)}
    assert widths == {5, 6} and pairs.inputs.sharding.is_equivalent_to(partitioning.rows(mesh), 2)
    gathered = [x for x in hlo.read(program.as_text() or "").collectives if "gather" in x.opcode]
    shapes = {f"[{','.join(map(str, x.shape))}]" for x in jax.tree.leaves(asked.params)}
    assert gathered and not any(shape in x.shape for x in gathered for shape in shapes)


HOST = """
import sys
from pathlib import Path

import jax

sys.path[:0] = sys.argv[4:]
jax.distributed.initialize(sys.argv[1], num_processes=2, process_id=int(sys.argv[2]))

import test_laws
from specdec.models import partitioning

test_laws.laws.TEXTS = 16
for parts in (2, 8):
    mesh = partitioning.make_mesh(parts)
    with jax.set_mesh(mesh):
        found = test_laws.over(mesh, Path(sys.argv[3]) / str(parts))
        pairs = test_laws.pack(test_laws.examples(8), test_laws.LENGTHS, 8, 2, pad_id=0)[0]
        assert found.added_to(pairs).laws.ids.any()
"""


@pytest.mark.slow
def test_two_processes_store_what_one_does(tmp_path, monkeypatch):
    """They feed different rows, or the same ones of a target that is divided over both."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=4"
    own = os.path.dirname(__file__)
    paths = [own, os.path.dirname(own)]
    both = [
        subprocess.Popen(
            [sys.executable, "-c", HOST, address, str(k), str(tmp_path), *paths],
            env=os.environ | {"XLA_FLAGS": flags},
            stderr=subprocess.PIPE,
            text=True,
        )
        for k in (0, 1)
    ]
    said = [process.communicate(timeout=300)[1] for process in both]
    assert all(process.returncode == 0 for process in both), said
    monkeypatch.setattr(laws, "TEXTS", 16)
    over(None, tmp_path / "one")
    for parts in ("2", "8"):
        assert len(list((tmp_path / parts).glob("0*"))) == 2
        assert_same_laws(tmp_path / "one", tmp_path / parts)


def test_the_highest_are_kept():
    values = np.array([[3.0, 1.0, 2.0], [5.0, 9.0, 4.0]])
    real = np.array([[1, 1, 1], [1, 0, 1]], bool)
    assert highest(values, real, 0.4).tolist() == [[False, False, False], [True, False, True]]
    assert highest(values, real, 0.5).tolist() == [[True, False, False], [True, False, True]]
    assert not highest(values, np.zeros([2, 3], bool), 0.4).any()


def test_only_what_a_reference_has_learned_is_learned():
    """The tokens whose KL is most above the reference's, by the definition; the loss is theirs."""
    pairs = batches(examples())[0]
    frozen = Frozen(TARGET, asked(1).params, DRAFT.init(jax.random.key(8)))
    params = DRAFT.init(jax.random.key(5))
    key, now = jax.random.key(0), jnp.float32(0)

    def nats(tree) -> np.ndarray:
        logits = (
            training.teacher_forced(TARGET, frozen.params, pairs),
            training.teacher_forced(DRAFT, tree, pairs)[..., :V],
        )
        p, q = (np.asarray(jax.nn.log_softmax(x), np.float64) for x in logits)
        return (np.exp(p) * (p - q)).sum(-1)

    own, real = nats(params), pairs.targets > 0
    gains = np.where(real, own - nats(frozen.reference), -np.inf)
    count = int(np.ceil(0.4 * real.sum()))
    chosen = np.argsort(-gains, axis=None)[:count]
    sums = Align(FORWARD, keep=0.4).loss(DRAFT, params, frozen, pairs, key, now)
    assert sums.tokens == count < real.sum()
    np.testing.assert_allclose(sums.loss, own.reshape(-1)[chosen].sum(), rtol=1e-4)
    assert (
        sums.tokens < Align(FORWARD, keep=0.9).loss(DRAFT, params, frozen, pairs, key, now).tokens
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> TrainRun:
    """A run that keeps half of the tokens and has the target's laws stored."""
    folder = tmp_path_factory.mktemp("run")
    words = ["".join(random.Random(i).choices("abcd", k=1 + i % 5)) for i in range(60)]
    (folder / "words.tsv").write_text("".join(f"{x}\t{x}\n" for x in words))
    model = T5Target(CONFIG)
    for name, seed in (("target", 0), ("reference", 1)):
        checkpoints.save(folder / name, model.init(jax.random.key(seed)), config=CONFIG)
    return TrainRun(
        model=model,
        task=tasks.local_task("stored_words", {"train": f"{folder}/words.tsv"}, tasks.Bytes()),
        lengths={"inputs": 8, "targets": 8},
        steps=6,
        batch_size=8,
        target=model,
        target_path=str(folder / "target"),
        reference_path=str(folder / "reference"),
        laws_path=str(folder / "laws"),
        objective=Align(FORWARD, top=4, keep=0.5),
    )


@pytest.fixture(scope="module")
def kept(run, tmp_path_factory) -> TrainRun:
    """The run, whose laws are stored."""
    training.train(dataclasses.replace(run, steps=1), tmp_path_factory.mktemp("kept") / "a")
    return run


def test_a_folder_of_other_laws_is_refused(kept):
    given = dataclasses.replace(kept, objective=Align(FORWARD, top=5, keep=0.5))
    params = kept.model.init(jax.random.key(0))
    with pytest.raises(RecordsError, match="was begun with top = 4, and now it is 5"):
        laws_of_run(given, 5, params, None, print)


def test_a_split_without_end_is_refused(run, monkeypatch):
    monkeypatch.setattr("specdec.tasks.task.FITS", 10)
    with pytest.raises(TrainingError, match="the split 'train' has no end, or more than"):
        laws_of_run(run, 4, (), None, print)


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda _: Align(FORWARD, top=0), "Align.top is 0; give a positive integer, or None"),
        (
            lambda _: Align(FORWARD, top=4, on_policy=0.5),
            "Align.top is 4 and on_policy 0.5, and for texts that the drafter draws no distr",
        ),
        (lambda _: Align(FORWARD, keep=1), "Align.keep is 1; give a number between 0 and 1, or"),
        (
            lambda run: dataclasses.replace(run, reference_path=None),
            "keeps 0.5 of the tokens, chosen by a reference drafter; give TrainRun.reference",
        ),
        (
            lambda run: dataclasses.replace(run, objective=Align(FORWARD, keep=0.5)),
            "laws_path is .* and the objective does not read it; give Align.top",
        ),
        (
            lambda run: dataclasses.replace(run, objective=Align(FORWARD, top=4)),
            "reference_path is .* and the objective does not read it; give Align.keep",
        ),
    ],
)
def test_mistakes(run, make, says):
    with pytest.raises(ValueError, match=says):
        make(run)
