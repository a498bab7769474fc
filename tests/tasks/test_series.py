"""Series as texts, next to chronos-forecasting: pytest tests/tasks/test_series.py

The golden checkpoint and all that was computed with it are the package's own; see
tests/golden/README.md.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import support
from tolerances import LOGITS

from specdec import Plan, checkpoints, tasks
from specdec.drafters import Autoregressive
from specdec.engine import Engine
from specdec.measure import output_metrics
from specdec.sampling import Sampling
from specdec.schedules import Fixed
from specdec.tasks import TaskError, mase, series
from specdec.tasks.series_tasks import Future
from specdec.verifiers import Block

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "hf_chronos"
DEFINITION = tasks.SeriesBins(str(GOLDEN / "config.json"))
THEIRS = np.load(GOLDEN / "golden.npz")
TEXTS = [
    ", ".join(map(str, row[:length]))
    for row, length in zip(THEIRS["series"], THEIRS["lengths"], strict=True)
]
LENGTHS = {"inputs": 21, "targets": 9}


def vocabulary():
    return series.Series(series.series_record((GOLDEN / "config.json").read_bytes()), "")


def batch(bins):
    pairs = [(text, None) for text in TEXTS]
    return next(tasks.text_batches(pairs, bins, LENGTHS, batch_size=len(pairs)))


def test_the_bins_are_those_of_chronos_forecasting():
    bins = vocabulary()
    assert np.array_equal(bins.centers, THEIRS["centers"])
    assert np.array_equal(bins.boundaries, THEIRS["boundaries"])


def test_inputs_are_filled_up_behind():
    """Rows are the package's, but filled up behind; see test_the_side_of_padding."""
    given = batch(vocabulary()).inputs
    for ours, theirs in zip(given, THEIRS["ids"], strict=True):
        first = np.flatnonzero(theirs)[0]
        assert np.array_equal(ours, np.roll(theirs, -first))


def test_scales():
    bins = vocabulary()
    scales = [bins.scale(text) for text in TEXTS]
    np.testing.assert_allclose(scales, THEIRS["scales"], rtol=1e-6)


def test_labels():
    bins, label = vocabulary(), text_of(np.linspace(-2, 40, 8))
    for text, theirs in zip(TEXTS, THEIRS["labels"], strict=True):
        assert [*tasks.output_ids(bins, label, text), bins.eos_id] == theirs.tolist()


def test_values_and_quantiles():
    bins = vocabulary()
    for text, ids, values, quantiles in zip(
        TEXTS, *(THEIRS[name] for name in ("samples", "values", "quantiles")), strict=True
    ):
        ours = [series.values_of(tasks.detokenize(bins, sample, text)) for sample in ids]
        np.testing.assert_allclose(ours, values, rtol=1e-6)
        # Theirs are float32, which rounds values by up to 6e-6 of them (EPYC, AVX2).
        np.testing.assert_allclose(tasks.quantiles(ours).T, quantiles, rtol=2e-5, atol=1e-6)


def text_of(values):
    return ", ".join(map(str, values))


@pytest.fixture(scope="module")
def model():
    return checkpoints.model_from(GOLDEN), checkpoints.load(GOLDEN)


def test_the_side_of_padding_changes_no_logits(model):
    """The package fills rows up in front, and a `Batch` behind."""
    behind = batch(vocabulary()).inputs
    split = behind.copy()  # as it would be with padding before EOS
    split[2, [-1, 6]] = split[2, [6, -1]]
    inputs = np.concatenate([THEIRS["ids"], behind, split])
    logits = support.teacher_forced(*model, inputs, np.tile(THEIRS["fed"], (3, 1)))
    in_front, behind, split = np.split(np.asarray(logits), 3)
    for ours in (in_front, behind):
        np.testing.assert_allclose(ours, THEIRS["logits"], rtol=0, atol=LOGITS)
    assert np.abs(split - THEIRS["logits"])[2].max() > 1e-2


@pytest.mark.ci
def test_greedy_ids_are_those_of_the_package(model):
    """Only the likeliest id can be drawn. In one row it would be EOS, which never comes."""
    sampling = Sampling(1.0, top_k=1)
    plan = Plan(model[0], Autoregressive(model[0], sampling), Block(), Fixed(3), sampling, 8)
    engine = Engine.open(plan, {"target": GOLDEN, "draft": GOLDEN}, rows=len(TEXTS))
    output, _ = engine.decode(batch(engine.vocabulary), seed=0)
    assert np.array_equal(output.tokens, THEIRS["greedy"])


@pytest.mark.parametrize(
    "text, values",
    [
        ("[1, 2.5, null]", [1, 2.5, np.nan]),
        ('{"start": "2020", "target": [3, NaN]}', [3, np.nan]),
        ("1, nan,,-2e3", [1, np.nan, np.nan, -2000]),
    ],
)
def test_texts_of_series(text, values):
    np.testing.assert_array_equal(series.values_of(text), values)


@pytest.mark.parametrize("text", ["", " ", "[]", "[true]", "1;2", "{}", "[1, inf]", "1e39", "[1"])
def test_texts_that_are_none(text):
    with pytest.raises(TaskError, match="is not one of finite numbers; give") as refused:
        series.values_of(text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"tokenizer_class": "Other"}, "tokenizer_class 'Other', and 'MeanScaleUniformBins' alone"),
        ({"model_type": "causal"}, "model_type 'causal', and 'seq2seq' alone"),
        ({"n_tokens": 3}, "n_tokens 3, which cannot be"),
        ({"n_tokens": 4}, "n_tokens 4, which cannot be"),
        ({"eos_token_id": 2}, "eos_token_id 2, which cannot be"),
        ({"tokenizer_kwargs": {"low_limit": 1}}, "tokenizer_kwargs: object missing required field"),
        ({"context_length": None}, "context_length: expected int, got null"),
        ({"n_special_tokens": "2"}, "n_special_tokens: expected int, got str"),
        ({"n_tokens": 10**12}, "n_tokens: expected int <= 16777215"),
        ({"input_patch_size": 16}, "chronos_config is of a Chronos-Bolt"),
    ],
)
def test_bins_that_cannot_be(tmp_path, change, message):
    record = json.loads((GOLDEN / "config.json").read_text())["chronos_config"] | change
    path = tmp_path / "chronos_config.json"
    path.write_text(json.dumps(record))
    with pytest.raises(TaskError, match="give a Chronos-T5's config.json") as refused:
        tasks.SeriesBins(str(path)).plain()
    assert message in str(refused.value)


def test_the_fewest_bins():
    record = json.loads((GOLDEN / "config.json").read_text())["chronos_config"] | {"n_tokens": 5}
    assert series.Series(record, "").vocab_size == 5


@pytest.mark.parametrize(
    "values, naive_error, counts",
    [
        ([1.0, 2.0, np.nan], 0.25, [1, 2]),  # the medians 2, 2, 5 are off by 1 and 0
        ([1.0, 2.0, np.nan], 0.0, [0, 0]),
        ([1.0, 2.0, np.nan], np.nan, [0, 0]),
        ([np.nan] * 3, 0.25, [0, 0]),
    ],
)
def test_the_scaled_error_of_a_median(values, naive_error, counts):
    samples = [np.array(row) for row in ([2.0, 1.0, 5.0], [0.0, 2.0, 5.0], [9.0, 9.0, 5.0])]
    found = mase.statistics(Future(np.array(values), naive_error), samples)
    assert found.tolist() == counts
    assert mase.values(np.array([4.0, 6.0])) == {"mase": 1.5}
    assert np.isnan(mase.values(np.zeros(2))["mase"])


def test_a_context_is_cut_at_its_begin_and_keeps_its_scale():
    bins = vocabulary()
    whole = bins.input_ids(TEXTS[0])
    assert bins.input_ids(TEXTS[0], 5) == whole[-5:]


@pytest.fixture
def task(tmp_path):
    path = tmp_path / "series.jsonl"
    path.write_text("[1, 2, null, 4, 5, 6, 7, 8]\n3,3,3,3\n")
    return tasks.series_task("series_of_test", {"test": str(path)}, DEFINITION, horizon=2)


def test_the_last_values_of_a_series_are_its_target(task):
    (first, second) = task.examples("test", {"inputs": 21, "targets": 3})
    bins = task.vocabulary
    assert first.input_text == "1.0, 2.0, nan, 4.0, 5.0, 6.0" and first.target_text == "7.0, 8.0"
    assert bins.scale(first.input_text) == np.float32(18 / 5)
    assert first.targets.tolist() == [*bins.output_ids("7, 8", "1,2,nan,4,5,6"), 1]
    assert second.inputs.tolist() == bins.input_ids("3, 3")
    target = task.postprocess(first.target_text, first, is_target=True)
    assert target.naive_error == 1.0  # of 1-2, 4-5 and 5-6
    assert target.values.tolist() == [7, 8]


@pytest.mark.parametrize(
    "lines, message",
    [
        ("1,2,3\n1,2\n", "line 2 has 2 values, and the last 2 are predicted; give longer series"),
        ("1,2,3\na\n", "line 2: series 'a"),
        (b"1,2,3\n1,\xff\n", "line 2: series '1,\ufffd"),
        ("", "is empty; write one series per line"),
    ],
)
def test_files_that_are_refused(tmp_path, lines, message):
    path = tmp_path / "short.csv"
    path.write_bytes(lines if isinstance(lines, bytes) else lines.encode())
    with pytest.raises(TaskError, match=message):
        tasks.series_task("series_refused", {"test": str(path)}, DEFINITION, horizon=2)


def test_a_task_of_texts_has_no_bins():
    with pytest.raises(TaskError, match="give SeriesBins"):
        tasks.series_task("series_of_bytes", {"test": "x"}, tasks.Bytes())


def test_weighted_quantile_loss_by_hand():
    metric = tasks.WeightedQuantileLoss(levels=(0.5, 0.9))
    targets = [Future(np.array([10.0, np.nan]), 1.0), Future(np.array([-2.0, 4.0]), 1.0)]
    samples = [
        [np.array([8.0, 0]), np.array([0.0, 4.0])],
        [np.array([9.0, 0]), np.array([0.0, 5.0])],
        [np.array([10.0, 0]), np.array([0.0, 6.0])],
    ]
    # 10: quantiles 9 and 9.8; -2: 0 and 0; 4: 5 and 5.8.
    at_half = 2 * (0.5 * 1 + 0.5 * 2 + 0.5 * 1)
    at_nine = 2 * (0.9 * 0.2 + 0.1 * 2 + 0.1 * 1.8)
    expected = (at_half + at_nine) / 2 / (10 + 2 + 4)
    assert output_metrics.values(metric, targets, samples) == {"wql": pytest.approx(expected)}


def test_mean_absolute_scaled_error_by_hand():
    future = np.array([1.0, 2.0])
    targets = [Future(future, 0.5), Future(future, 2.0), Future(future, 0.0)]
    samples = [[future + 9] * 3, [future + 1] * 3, [future] * 3]
    expected = (1 / 0.5 + 1 / 2) / 2
    assert output_metrics.values(mase, targets, samples) == {"mase": pytest.approx(expected)}
