"""Commands on series, with the golden Chronos checkpoint: pytest tests/cli/test_cli_series.py"""

import argparse
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from support import few

from specdec import checkpoints, cli, tasks

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "hf_chronos"
SERIES = ("1, 2, nan, 4, 5, 6, 7, 8", "300, 100, 200")
RUN = ["--gin_file=series.gin", f"--target={GOLDEN}", "--max_length=8", "--gin.BUCKETS=()"]
RUN += ["--gin.TASK_FEATURE_LENGTHS={'inputs': 21, 'targets': 8}"]
TEXTS = [f"--text={text}" for text in SERIES]


@pytest.fixture
def said(capsys):
    """Runs a command; returns its code, and what it printed."""

    def run(*argv):
        try:
            code = cli.main(argv)
        except SystemExit as stopped:
            code = stopped.code
        return code, *capsys.readouterr()

    return run


@pytest.mark.ci
def test_samples_and_their_quantiles(said, tmp_path):
    file = tmp_path / "out.jsonl"
    flags = ["--quantiles=0.1,0.5,0.9", f"--output_file={file}"]
    code, out, err = said("decode", *RUN, *TEXTS, *flags)
    assert code == 0, err
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(records) == 40 and all(len(record["tokens"]) == 8 for record in records)
    shown = [json.loads(line) for line in out.splitlines()]
    bins = tasks.SeriesBins(str(GOLDEN / "config.json")).plain()
    for index, text in enumerate(SERIES):
        ids = [record["tokens"] for record in records if record["index"] == index]
        assert len({tuple(sample) for sample in ids}) > 10  # not all the same
        values = np.array([bins.values(sample, bins.scale(text)) for sample in ids])
        quantiles = np.quantile(values, [0.1, 0.5, 0.9], axis=0)
        np.testing.assert_allclose(list(shown[index].values()), quantiles, rtol=1e-5)


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--max_length=9"], "predicts 8 values (prediction_length), and outputs hold 9; give"),
        (["--quantiles=10"], "--quantiles is 10; give levels between 0 and 1, as 0.1,0.5,0.9"),
        (["--gin.TOP_K=None"], "config.json has top_k 50, and this run has None; give --top_k=50"),
        (["--gin_file=sampling/greedy.gin", "--gin.NUM_SAMPLES=1"], "has do_sample True, and this"),
        (["--text=a;b"], "series 'a;b' is not one of finite numbers; give [1.5, null, 2], or"),
        (["--decoder_prefix=1.5"], "'1.5' has no ids of its own, since a series is scaled by its"),
    ],
)
def test_what_is_refused_in_one_line(said, flags, message):
    code, out, err = said("decode", *RUN, *TEXTS, *flags)
    (line,) = (line for line in err.splitlines() if line.startswith("specdec: "))
    assert code == 2 and message in line and not out


@pytest.mark.parametrize("format", checkpoints.FORMATS)
def test_every_format_keeps_the_bins_and_the_settings(said, tmp_path, format):
    there, back = tmp_path / "there", tmp_path / "back"
    for given, made, kind in ((GOLDEN, there, format), (there, back, "huggingface")):
        code, _, err = said("convert", f"--input={given}", f"--output={made}", f"--format={kind}")
        assert code == 0, err
    first, second = (json.loads((path / "config.json").read_text()) for path in (GOLDEN, back))
    assert second["chronos_config"] == first["chronos_config"]
    assert sorted(file.name for file in back.iterdir()) == ["config.json", "model.safetensors"]
    before = checkpoints.text_model_from(GOLDEN).in_effect
    for path in (there, back):
        params = checkpoints.load(path, config=checkpoints.config_from(GOLDEN))
        equal = jax.tree.map(np.array_equal, params, checkpoints.load(GOLDEN))
        assert jax.tree.all(equal)
        settings = checkpoints.text_model_from(path).in_effect
        assert {k: v.value for k, v in settings.items()} == {k: v.value for k, v in before.items()}
        checkpoints.check_pair(GOLDEN, path)


PUBLISHED = {"tiny": 8, "mini": 20, "small": 46, "base": 201, "large": 709}  # millions


@pytest.mark.parametrize("pair", few(["base_tiny", "large_tiny", "large_small"]))
def test_the_released_sizes_have_their_numbers_of_parameters(pair):
    paths = ["CHECKPOINT_PATH = '-'", "DRAFT_CHECKPOINT_PATH = '-'", "TASK = None"]
    args = argparse.Namespace(
        gin_file=[f"series/chronos_{pair}.gin"],
        gin_bindings=paths,
        gin_search_paths=".",
        tfds_data_dir=None,
    )
    run = cli.settings.build(cli.DecodeRun, args, {})
    for role, size in zip(("target", "draft"), pair.split("_"), strict=True):
        count = checkpoints.parameter_count(run.plan.models()[role])
        assert round(count / 1e6) == PUBLISHED[size]
    assert run.data.num_samples == 20 and run.plan.max_length == 64
