"""The model class for T5X: pytest tests/integrations/test_t5x_plugin.py

Without T5X a stand-in for its base class takes its place; the runs of T5X itself are then skipped.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import SCORES

from specdec import DecodeOutput, Params, Plan, Trace, autoregressive_decode, checkpoints, decode
from specdec.checkpoints import tables
from specdec.common import demo
from specdec.drafters import Autoregressive
from specdec.integrations import bridge
from specdec.models.t5 import T5Config, T5Target
from specdec.sampling import (
    Greedy,
    NoRepeatNGram,
    Processed,
    RepetitionPenalty,
    Sampling,
    SuppressTokens,
)
from specdec.schedules import Fixed
from specdec.verifiers import Coupled, GreedyMatch

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "v1_1"
CHECKPOINT = str(GOLDEN / "t5x_native")
WHOLE = ROOT / "tests" / "golden" / "wide_heads"  # has the optimizer's state, which T5X wants
ROWS = 2
T5X = importlib.util.find_spec("t5x") is not None
with_t5x = pytest.mark.skipif(not T5X, reason="T5X is not installed; see docs/how-to/t5x.md")


class StandIn:
    """What the plug-in uses of `t5x.models.EncoderDecoderModel`."""

    def __init__(
        self,
        module,
        input_vocabulary,
        output_vocabulary,
        optimizer_def,
        decode_fn=None,
        default_decoder_params=None,
    ):
        self.output_vocabulary = output_vocabulary
        single = types.SimpleNamespace(num_decodes=1, return_all_decodes=False)
        self._default_decoder_params = default_decoder_params or single


class Vocabulary(NamedTuple):
    vocab_size: int = 128
    pad_id: int = 0
    eos_id: int = 1
    unk_id: int = 2
    extra_ids: int = 0


VOCABULARY = Vocabulary()


class Golden(NamedTuple):
    make: type  # SpeculativeModel
    target: T5Target
    params: dict
    batch: dict
    greedy: np.ndarray

    def model(self, vocabulary=VOCABULARY, draft_path=CHECKPOINT, **parts):
        parts = {"sampling": Greedy(), "verifier": GreedyMatch(), "schedule": Fixed(3)} | parts
        return self.make(
            types.SimpleNamespace(config=self.target.config),
            vocabulary,
            vocabulary,
            None,
            drafter=Autoregressive(self.target, parts["sampling"]),
            draft=self.target,
            draft_checkpoint_path=draft_path,
            **parts,
        )


@pytest.fixture(scope="module")
def golden():
    with pytest.MonkeyPatch.context() as patch:
        if not T5X:
            models = types.ModuleType("t5x.models")
            models.EncoderDecoderModel = StandIn
            package = types.ModuleType("t5x")
            package.models = models
            patch.setitem(sys.modules, "t5x", package)
            patch.setitem(sys.modules, "t5x.models", models)
            patch.delitem(sys.modules, "specdec.integrations.t5x", raising=False)
        from specdec.integrations.t5x import SpeculativeModel

        target = T5Target(T5Config(**json.loads((GOLDEN / "config.json").read_text())))
        figures = np.load(GOLDEN / "golden.npz")
        batch = {
            "encoder_input_tokens": jnp.asarray(figures["encoder_input_tokens"][:ROWS]),
            "decoder_input_tokens": jnp.zeros([ROWS, figures["greedy"].shape[1]], jnp.int32),
        }
        params = checkpoints.load(CHECKPOINT, config=target.config)
        yield Golden(SpeculativeModel, target, params, batch, figures["greedy"][:ROWS])
    sys.modules.pop("specdec.integrations.t5x", None)


def words(seed: int, implementation: str) -> jax.Array:
    """A raw key, as T5X passes it."""
    return jax.random.key_data(jax.random.key(seed, impl=implementation))


def network(**config):
    return types.SimpleNamespace(config=types.SimpleNamespace(**config))


# ---- what needs no T5X -------------------------------------------------------------------------


def test_a_network_says_its_sizes():
    sizes = {"emb_dim": 8, "num_heads": 2, "head_dim": 4, "mlp_dim": 16}
    sizes |= {"vocab_size": 32, "num_encoder_layers": 1, "num_decoder_layers": 2}
    theirs = network(**sizes, dtype=jnp.bfloat16, mlp_activations=["relu"], dropout_rate=0.1)
    assert bridge.config_of(theirs) == T5Config(
        **sizes, dtype="bfloat16", mlp_activations=("relu",)
    )


@pytest.mark.parametrize(
    "module, message",
    [
        (types.SimpleNamespace(config=types.SimpleNamespace(scan_layers=True)), "scans its layers"),
        (
            types.SimpleNamespace(config=types.SimpleNamespace(emb_dim=8)),
            "no vocab_size, num_heads",
        ),
        (object(), "object is not a network of t5x.examples.t5"),
    ],
)
def test_a_network_that_is_no_t5(module, message):
    with pytest.raises(ValueError, match=message):
        bridge.config_of(module)


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_keys_are_ours_whatever_t5x_uses(implementation):
    raw = words(7, implementation)
    keys = bridge.row_keys(raw, 3, 2)
    assert keys.shape == (6,) and str(jax.random.key_impl(keys)) == "threefry2x32"
    data = jax.random.key_data(keys)
    assert len(np.unique(data, axis=0)) == 6
    typed = bridge.row_keys(jax.random.wrap_key_data(raw, impl=implementation), 3, 2)
    np.testing.assert_array_equal(jax.random.key_data(typed), data)
    # A row's keys depend neither on how many rows there are nor on how often it is sampled.
    np.testing.assert_array_equal(jax.random.key_data(bridge.row_keys(raw, 2, 2)), data[:4])
    np.testing.assert_array_equal(jax.random.key_data(bridge.row_keys(raw, 3, 1)), data[::2])
    for word in range(len(raw)):  # each word of the seed counts
        other = bridge.row_keys(raw.at[word].add(1), 3, 2)
        assert not (jax.random.key_data(other) == data).all(1).any()


def test_no_key_is_a_key_too():
    assert bridge.row_keys(None, 2, 1).shape == (2,)


def an_output() -> DecodeOutput:
    """Two texts with two samples each; every sample is one call after another."""
    accepted = jnp.array([[3, 0, 1], [3, 3, 0], [0, 0, 0], [1, 0, 0]])
    drafted = jnp.array([[3, 3, 2], [3, 3, 0], [0, 0, 0], [3, 0, 0]])
    return DecodeOutput(
        tokens=jnp.arange(12).reshape(4, 3),
        length=jnp.array([7, 8, 0, 2]),
        log_probs=jnp.array([[-1.0, -1, 0], [-1, 0, 0], [-3, -1, 0], [-5, 0, 0]]),
        trace=Trace(
            proposed=jnp.zeros([4, 3, 3], jnp.int32),
            drafted=drafted,
            accepted=accepted,
            calls=jnp.array([3, 2, 0, 1]),
            ended_in_draft=jnp.zeros([4], bool),
            steps=jnp.array(3),
            broken_drafts=jnp.zeros([1], int),
            failed=jnp.zeros([1], bool),
        ),
    )


def test_all_samples_are_returned_best_last():
    decodes, aux = bridge.predictions(an_output(), samples=2, return_all=True)
    assert decodes.tolist() == [[[0, 1, 2], [3, 4, 5]], [[9, 10, 11], [6, 7, 8]]]
    assert {name: values.tolist() for name, values in aux.items()} == {
        "scores": [[-2, -1], [-5, -4]],
        "tokens": [[7, 8], [2, 0]],
        "target_calls": [[3, 2], [1, 0]],
        "drafted": [[8, 6], [3, 0]],
        "tested": [[6, 6], [2, 0]],
        "accepted": [[4, 6], [1, 0]],
    }


def test_or_only_the_best():
    decodes, aux = bridge.predictions(an_output(), samples=2, return_all=False)
    assert decodes.tolist() == [[3, 4, 5], [6, 7, 8]]
    assert aux["scores"].tolist() == [-1, -4] and aux["accepted"].tolist() == [6, 0]


@pytest.mark.skipif(T5X, reason="T5X is installed")
def test_without_t5x_its_absence_is_named():
    with pytest.raises(
        ImportError, match="needs T5X .*; docs/how-to/t5x.md says how to install it"
    ):
        importlib.import_module("specdec.integrations.t5x")


def test_the_mode_is_said_once(capsys):
    for gamma in (11, 11, 12):
        bridge.announce(f"Autoregressive, Fixed(gamma={gamma})")
    first, second = capsys.readouterr().err.splitlines()
    assert first == "specdec decodes with Autoregressive, Fixed(gamma=11)"
    assert "gamma=12" in second


# ---- the model ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_greedy_decodes_are_t5xs_under_its_generator(golden):
    """Of a row that begins with a prompt, the first tokens of that text, and of one without."""
    targets = np.array(golden.batch["decoder_input_tokens"])
    targets[0, 1:6] = [*golden.greedy[0, :4], 1]  # its EOS is no part of the prompt
    batch = golden.batch | {"decoder_input_tokens": jnp.asarray(targets)}
    model = golden.model()
    predict = jax.jit(functools.partial(model.predict_batch_with_aux, prompt_with_targets=True))
    with jax.default_prng_impl("unsafe_rbg"):
        decodes, aux = predict(golden.params, batch, words(0, "unsafe_rbg"))
    np.testing.assert_array_equal(decodes, golden.greedy)
    # The draft is the target: all that it says is accepted, whatever the cut at EOS.
    np.testing.assert_array_equal(aux["accepted"], aux["tested"])
    lengths = np.array([np.flatnonzero(row)[-1] + 1 for row in golden.greedy])  # 0 is also a token
    np.testing.assert_array_equal(aux["tokens"], lengths)
    np.testing.assert_array_equal(aux["target_calls"], np.ceil((lengths - [4, 0]) / 4))
    assert (aux["scores"] < 0).all() and aux["scores"].shape == (ROWS,)


@pytest.mark.slow
def test_samples_come_from_the_rows_own_keys(golden):
    sampling, rng = Sampling(temperature=0.7), words(3, "threefry2x32")
    model = golden.model(sampling=sampling, verifier=Coupled())
    batch = golden.batch | {"decoder_input_tokens": jnp.zeros([ROWS, 12], jnp.int32)}
    decodes, aux = model.predict_batch_with_aux(
        golden.params, batch, rng, return_all_decodes=True, num_decodes=2
    )
    assert decodes.shape == (ROWS, 2, 12) and (np.diff(aux["scores"], axis=1) >= 0).all()
    drafter = Autoregressive(golden.target, sampling)
    ours = decode(
        Params(golden.params, golden.params),
        bridge.row_keys(rng, ROWS, 2),
        jnp.repeat(batch["encoder_input_tokens"], 2, axis=0),
        Plan(golden.target, drafter, Coupled(), Fixed(3), sampling, max_length=12),
    )
    for decoded, expected in zip(decodes, ours.tokens.reshape(ROWS, 2, 12), strict=True):
        assert sorted(decoded.tolist()) == sorted(expected.tolist())


@pytest.mark.ci
def test_beams_are_those_of_t5x(golden):
    right = np.load(GOLDEN / "golden.npz")
    batch = {
        "encoder_input_tokens": jnp.asarray(right["encoder_input_tokens"][:ROWS]),
        "decoder_input_tokens": jnp.zeros([ROWS, right["beam4"].shape[2]], jnp.int32),
    }
    ask = functools.partial(golden.model().predict_batch_with_aux, golden.params, batch)
    decodes, aux = ask(return_all_decodes=True, num_decodes=4, decoder_params={"alpha": 0.6})
    np.testing.assert_array_equal(decodes, right["beam4"][:ROWS])
    np.testing.assert_allclose(aux["scores"], right["beam4_scores"][:ROWS], **SCORES)
    assert (aux["target_calls"] < aux["search_steps"]).all()
    best, aux = ask(num_decodes=4)
    np.testing.assert_array_equal(best, right["beam4"][:ROWS, -1])
    np.testing.assert_allclose(aux["scores"], right["beam4_scores"][:ROWS, -1], **SCORES)


def test_a_call_that_means_something_else(golden):
    given = {"topk": 0, "temperature": 0.5}
    with pytest.raises(ValueError, match="has topk, temperature, which"):
        golden.model().predict_batch_with_aux(golden.params, golden.batch, decoder_params=given)


@pytest.mark.parametrize(
    "given, message",
    [
        ({"sampling": Sampling()}, "GreedyMatch compares argmaxes"),
        (
            {"sampling": Processed(Greedy(), (SuppressTokens((500,)),))},
            "SuppressTokens names token 500 but the vocabulary has 128",
        ),
        ({"draft_path": None}, "draft and draft_checkpoint_path belong together"),
        ({"draft_path": str(GOLDEN / "absent")}, "absent does not exist"),
        ({"draft_path": str(GOLDEN.parent / "v1_0" / "t5x_native")}, "does not fit the model"),
        ({"draft_path": demo.path("draft")}, "saved with another vocabulary"),
        ({"vocabulary": Vocabulary(vocab_size=129)}, "128 output ids but the vocabulary 129"),
    ],
)
def test_a_model_that_cannot_work(golden, given, message):
    with pytest.raises((ValueError, checkpoints.CheckpointError), match=message):
        golden.model(**given)


def test_what_a_call_asks_of_the_decoder(golden, monkeypatch):
    """Two decodes are beams. Targets are a prompt only if that is said, and without their EOS."""
    plugin, asked = sys.modules[golden.make.__module__], []
    for name, seen in (("decode", "predictions"), ("beam_search", "beams")):
        monkeypatch.setattr(plugin, name, lambda *_, prefix=None, **__: asked.append(prefix))
        monkeypatch.setattr(bridge, seen, lambda *_, seen=seen: seen)
    model = golden.model()
    targets = golden.batch["decoder_input_tokens"].at[:, 1:4].set(jnp.array([7, 8, 1]))
    ask = functools.partial(
        model.predict_batch_with_aux,
        golden.params,
        golden.batch | {"decoder_input_tokens": targets},
    )
    assert [ask(num_decodes=count) for count in (1, 2)] == ["predictions", "beams"]
    assert asked == [None, None]
    ask(prompt_with_targets=True)
    assert asked[2][:, :4].tolist() == [[7, 8, 0, 0]] * ROWS


def test_parameters_of_another_model(golden):
    params = {name: tree for name, tree in golden.params.items() if name != "encoder"}
    with pytest.raises(checkpoints.CheckpointError, match="T5X's tree of parameters does not fit"):
        golden.model().predict_batch_with_aux(params, golden.batch)


# ---- T5X itself --------------------------------------------------------------------------------

TASK = """
import numpy as np
import seqio

golden = np.load({figures!r})
feature = seqio.Feature(seqio.PassThroughVocabulary(128, eos_id=1), add_eos=False)


def examples(split, shuffle_files, seed=None):
    import tensorflow as tf

    rows = [row[: np.flatnonzero(row)[-1] + 1] for row in golden["encoder_input_tokens"]]
    return tf.data.Dataset.from_generator(
        lambda: ({{"inputs": row, "targets": row[:1]}} for row in rows),
        output_signature={{n: tf.TensorSpec([None], tf.int32) for n in ("inputs", "targets")}},
    )


seqio.TaskRegistry.add(
    "golden_ids",
    source=seqio.FunctionDataSource(examples, splits=["test"]),
    preprocessors=[],
    output_features={{"inputs": feature, "targets": feature}},
)
"""

RUN = """
from __gin__ import dynamic_registration

import __main__ as infer_script
import golden_task
import seqio
from specdec.models import t5
from t5x import adafactor
from t5x.examples.t5 import network
from t5x import utils

include 't5x/configs/runs/infer.gin'
include 'integrations/t5x_infer.gin'
include 'verifiers/greedy_match.gin'

DRAFT_MODEL = @t5.T5Target()
t5.T5Target.config = @t5.T5Config()
VOCABULARY = @seqio.PassThroughVocabulary()
seqio.PassThroughVocabulary.size = 128
seqio.PassThroughVocabulary.eos_id = 1
OPTIMIZER = @adafactor.Adafactor()
network.Transformer.config = @network.T5Config()
network.T5Config.dropout_rate = 0.0
MIXTURE_OR_TASK_NAME = 'golden_ids'
utils.RestoreCheckpointConfig.dtype = 'float32'
utils.DatasetConfig.batch_size = 4
infer_script.infer.checkpoint_ds_iter = False
"""


INTERACTIVE = """
import json

import numpy as np
import seqio
import tensorflow as tf
from specdec import checkpoints, drafters, sampling, schedules, verifiers
from specdec.integrations.t5x import SpeculativeModel
from specdec.models import t5
from t5x import adafactor, partitioning
from t5x.examples.t5 import network
from t5x.interactive_model import InferenceType, InteractiveModel

sizes = json.load(open({golden!r} + "/config.json"))
vocabulary = seqio.PassThroughVocabulary(128, eos_id=1)
draft = t5.T5Target(t5.T5Config(**sizes))
greedy_only = sampling.Greedy()
interactive = InteractiveModel(
    batch_size=2,
    task_feature_lengths={{"inputs": 150, "targets": 40}},
    output_dir="interactive",
    partitioner=partitioning.PjitPartitioner(num_partitions=1),
    model=SpeculativeModel(
        network.Transformer(network.T5Config(**sizes, dropout_rate=0.0)),
        vocabulary,
        vocabulary,
        adafactor.Adafactor(logical_factor_rules=adafactor.standard_logical_factor_rules()),
        drafter=drafters.Autoregressive(draft, greedy_only),
        verifier=verifiers.SpeculativeSampling(),
        schedule=schedules.Fixed(3),
        sampling=greedy_only,
        draft=draft,
        draft_checkpoint_path={checkpoint!r},
    ),
    dtype="float32",
    restore_mode="specific",
    checkpoint_path={checkpoint!r} + "/checkpoint_0",
    input_shapes={{"encoder_input_tokens": (2, 150), "decoder_input_tokens": (2, 40)}},
)


def ids(examples):
    def parse(example):
        split = tf.strings.split
        return {{name: tf.strings.to_number(split(example[name]), tf.int32) for name in example}}

    return examples.map(parse)


golden = np.load({golden!r} + "/golden.npz")
texts = [" ".join(map(str, row[row > 0])) for row in golden["encoder_input_tokens"]]
greedy = [" ".join(map(str, row[: np.flatnonzero(row)[-1] + 1])) for row in golden["greedy"]]
examples = [{{"input": text, "target": out}} for text, out in zip(texts, greedy)]
predicted, aux = interactive.infer_with_preprocessors(
    InferenceType.PREDICT_WITH_AUX, examples, [ids]
)
scored, _ = interactive.infer_with_preprocessors(InferenceType.SCORE, examples, [ids])
result = {{"decodes": [ids.tolist() for _, ids in predicted], "aux": aux}}
print(json.dumps(result | {{"scores": [float(score) for _, score in scored]}}))
"""


@pytest.fixture(scope="module")
def t5x_run(tmp_path_factory):
    """A folder with a task and a gin file for T5X's scripts on the golden checkpoint."""
    folder = tmp_path_factory.mktemp("t5x")
    (folder / "golden_task.py").write_text(TASK.format(figures=str(GOLDEN / "golden.npz")))
    sizes = {"network": GOLDEN, "t5": GOLDEN.parent / "v1_0"}
    settings = [
        f"{module}.T5Config.{name} = {value!r}"
        for module, model in sizes.items()
        for name, value in json.loads((model / "config.json").read_text()).items()
    ]
    settings += [
        f"CHECKPOINT_PATH = {CHECKPOINT + '/checkpoint_0'!r}",
        f"DRAFT_CHECKPOINT_PATH = {str(GOLDEN.parent / 'v1_0' / 't5x_native')!r}",
        "TASK_FEATURE_LENGTHS = {'inputs': 150, 'targets': 40}",
        f"INFER_OUTPUT_DIR = {str(folder / 'out')!r}",
    ]
    (folder / "run.gin").write_text(RUN + "\n".join(settings))
    return folder


def in_t5x(
    folder: Path, *arguments: str, drafter: str = "Autoregressive"
) -> subprocess.CompletedProcess:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
        "JAX_NUMPY_RANK_PROMOTION": "allow",  # T5X adds axes by itself
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",  # it shards the target over them
    }
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr.count(f"specdec decodes with {drafter}, ") == 1
    return done


def assert_greedy(model: Path, decodes: list[list[int]], lengths: list[int]) -> None:
    expected = np.load(model / "golden.npz")["greedy"]
    for ours, length, t5xs in zip(decodes, lengths, expected, strict=True):
        assert ours[:length] == t5xs[:length].tolist()
        assert not t5xs[length:].any()


def inferred(folder, name: str, *flags: str, drafter="Autoregressive", mode="predict_with_aux"):
    """Returns the records that T5X's script writes."""
    given = ["--gin_file=run.gin", f"--gin_search_paths=.,{ROOT / 'gin'}", *flags]
    given += [f"--gin.INFER_OUTPUT_DIR={str(folder / name)!r}", f"--gin.infer.mode={mode!r}"]
    in_t5x(folder, "-m", "t5x.infer", *given, drafter=drafter)
    (file,) = (folder / name).glob("*.jsonl-00000-of-00001")
    return [json.loads(line) for line in file.read_text().splitlines()]


FRAGMENT = "--gin_file=drafters/{}.gin", "--gin_file=schedules/fixed.gin"
NO_MODEL = ("--gin.DRAFT_MODEL=None", "--gin.DRAFT_CHECKPOINT_PATH=None")


@with_t5x
@pytest.mark.parametrize(
    "name, drafter, flags",
    [
        ("autoregressive", "Autoregressive", ()),
        ("prompt_lookup", "PromptLookup", (*FRAGMENT, *NO_MODEL)),
        ("hybrid", "Hybrid", (*FRAGMENT, "--gin.LOOKUP_SHORTEST=1")),
        ("ngram", "NGram", (*FRAGMENT, *NO_MODEL, "--gin.DRAFT_TABLE_PATH='table'")),
    ],
)
def test_infer_gives_t5xs_own_greedy_decodes(t5x_run, name, drafter, flags):
    """The folder has a table of T5X's own texts."""
    if not (t5x_run / "table").exists():
        figures = np.load(GOLDEN / "golden.npz")["greedy"]
        table = tables.count([[0, *row] for row in figures.tolist()], 128)
        tables.save(t5x_run / "table", "ngram", table)
    records = inferred(t5x_run, name, *(flag.format(name) for flag in flags), drafter=drafter)
    lengths = [record["aux"]["tokens"] for record in records]
    assert_greedy(GOLDEN, [record["prediction"] for record in records], lengths)
    assert drafter == "Autoregressive" or sum(one["aux"]["accepted"] for one in records) > 0


BEAMS = """
from __gin__ import dynamic_registration

from specdec.integrations import t5x
from t5x import models

t5x.SpeculativeModel.default_decoder_params = @models.DecoderParams()
models.DecoderParams.num_decodes = 4
models.DecoderParams.return_all_decodes = True
"""


@with_t5x
def test_infer_searches_for_t5xs_own_beams(t5x_run):
    (t5x_run / "beams.gin").write_text(BEAMS)
    records = inferred(t5x_run, "beams", "--gin_file=beams.gin")
    right = np.load(GOLDEN / "golden.npz")
    for record, beams, scores in zip(records, right["beam4"], right["beam4_scores"], strict=True):
        np.testing.assert_array_equal(record["prediction"], beams)
        np.testing.assert_allclose(record["aux"]["scores"], scores, **SCORES)


@with_t5x
def test_infer_with_penalties_and_bans(t5x_run, golden):
    """By the macros of every other run, in T5X's own script."""
    flags = "--gin.NO_REPEAT_NGRAM_SIZE=2", "--gin.REPETITION_PENALTY=1.3"
    records = inferred(t5x_run, "penalties", *flags, mode="predict")
    inputs = np.load(GOLDEN / "golden.npz")["encoder_input_tokens"]
    alone = autoregressive_decode(
        golden.params,
        bridge.row_keys(None, len(inputs), 1),
        jnp.asarray(inputs),
        target=golden.target,
        sampling=Processed(Greedy(), (RepetitionPenalty(1.3), NoRepeatNGram(2))),
        max_length=golden.greedy.shape[1],
    )
    for record, tokens, length in zip(records, alone.tokens, alone.length, strict=True):
        assert record["prediction"][:length] == tokens[:length].tolist()
    assert not np.array_equal(alone.tokens[:ROWS], golden.greedy)


@with_t5x
def test_it_works_in_t5xs_interactive_model(t5x_run):
    """Under whose generator, too, and with scores that are T5X's own of the same texts."""
    script = INTERACTIVE.format(golden=str(WHOLE), checkpoint=str(WHOLE / "t5x_native"))
    result = json.loads(in_t5x(t5x_run, "-c", script).stdout.splitlines()[-1])
    aux = result["aux"]
    assert_greedy(WHOLE, result["decodes"], aux["tokens"])
    assert aux["accepted"] == aux["tested"]  # the draft is the target
    np.testing.assert_allclose(aux["scores"], result["scores"], rtol=1e-4)
