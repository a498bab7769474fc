"""configs/leviathan and configs/ladder, at a tiny size: pytest tests/cli/test_paper_configs.py"""

from __future__ import annotations

import argparse
import functools
import json
import re
from pathlib import Path

import jax
import pytest
from support import few

import gin
from specdec import checkpoints, cli
from specdec.common import published, theory
from specdec.drafters import Autoregressive
from specdec.models.t5 import T5Target
from specdec.sampling import Greedy, Sampling
from specdec.schedules import Fixed
from specdec.verifiers import Block, GreedyMatch, SpeculativeSampling

pytestmark = pytest.mark.ci

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"
PAPER = sorted(f"leviathan/{file.name}" for file in CONFIGS.glob("leviathan/*_*_t?.gin"))
PUBLIC = sorted(f"ladder/{file.name}" for file in CONFIGS.glob("ladder/*_*.gin"))
TASKS = {"ende": "wmt_t2t_ende_v003", "cnndm": "cnn_dailymail_v002"}
BUCKET = "gs://t5-data/pretrained_models/t5x"
CHECKPOINTS = ("CHECKPOINT_PATH = 'a'", "DRAFT_CHECKPOINT_PATH = 'b'")

LINES = ["one\teins", "two words\tzwei Wörter"]
TINY = """
from __gin__ import dynamic_registration

from specdec import tasks
from specdec.models import t5

include 'tasks/local.gin'

TASK_NAME = 'the task'
TASK_FILES = {'test': 'the folder/test.tsv'}
TASK_FEATURE_LENGTHS = {'inputs': 16, 'targets': 12}
VOCABULARY = @tasks.Bytes()

t5.T5Config.vocab_size = 264
"""
SIZE = """
{scope}/t5.T5Config:
  emb_dim = 8
  num_heads = 2
  head_dim = 4
  mlp_dim = 8
  num_encoder_layers = 1
  num_decoder_layers = 1
"""


def paper(file: str) -> published.Published:
    """The published row that a file repeats."""
    return published.rows()[Path(file).stem]


def calculated(row: published.Published) -> float:
    """The speed-up of theorem 3.8."""
    return theory.speedup(row.alpha, row.gamma, row.c)


def built(*files: str, bindings: tuple[str, ...] = ()) -> cli.DecodeRun:
    args = argparse.Namespace(
        gin_file=files, gin_bindings=bindings, gin_search_paths=".", tfds_data_dir=None
    )
    return cli.settings.build(cli.DecodeRun, args, {})


def preset(name: str) -> T5Target:
    """A released size, in bfloat16. Reads another configuration: forgets the present one."""
    gin.clear_config()
    gin.parse_config_file(str(ROOT / "gin" / "models" / "t5.gin"))
    gin.parse_config("DTYPE = 'bfloat16'")
    with gin.config_scope(name):
        return gin.get_configurable(T5Target)()


def test_every_published_row_has_a_file_and_its_name():
    names = {f"{task}_{size}" for task in TASKS for size in ("small", "base", "large")}
    assert {Path(file).stem for file in PAPER} == {f"{x}_t{t}" for x in names for t in (0, 1)}
    rows = published.rows()
    assert rows.keys() == {Path(file).stem for file in PAPER}
    tasks = {"EnDe": "ende", "CNN/DM": "cnndm"}
    for name, row in rows.items():
        assert name == f"{tasks[row.task]}_{row.draft}_t{row.temperature}"


@pytest.mark.parametrize("file", PAPER)
def test_a_row_is_what_its_name_and_the_paper_say(file):
    """The formula predicts what is published, from an alpha and a c that round to those printed."""
    row, half = paper(file), 0.005
    low = theory.speedup(row.alpha - half, row.gamma, row.c + half)
    high = theory.speedup(row.alpha + half, row.gamma, row.c - half)
    assert round(low, 1) <= row.expected <= round(high, 1)
    line = (
        f"#   paper: alpha={row.alpha:.2f} c={row.c:.2f} gamma={row.gamma} Exp={row.expected:.1f} "
        f"Emp={row.measured:.1f} predicted={calculated(row):.2f}\n"
    )
    assert line in (CONFIGS / file).read_text()
    task, size, temperature = Path(file).stem.split("_")
    greedy, plan = temperature == "t0", built(file, bindings=(*CHECKPOINTS, "TASK = None")).plan
    assert gin.query_parameter("TASK_NAME/macro.value") == TASKS[task]
    sampling = Greedy() if greedy else Sampling(1.0)
    assert plan.target == preset("t5_1_1_xxl")
    assert plan.drafter == Autoregressive(preset(f"t5_1_1_{size}"), sampling)
    assert plan.sampling == sampling
    assert plan.verifier == (GreedyMatch() if greedy else SpeculativeSampling())
    assert plan.schedule == Fixed(row.gamma)


def test_the_table_in_the_docs_too():
    lines = [
        f"| `{row.name}.gin` | {row.gamma} | {row.alpha:.2f} | {row.c:.2f} | {row.expected:.1f} "
        f"| {row.measured:.1f} | {calculated(row):.2f} |\n"
        for row in published.rows().values()
    ]
    assert "".join(lines) in (ROOT / "docs" / "reference" / "published-runs.md").read_text()


@pytest.mark.parametrize("given, missing", [CHECKPOINTS, CHECKPOINTS[::-1]])
def test_a_row_asks_for_its_checkpoints(given, missing):
    with pytest.raises(cli.UsageError, match=f"^{missing.split()[0]} is required; set it"):
        built(PAPER[0], bindings=(given, "TASK = None"))


@pytest.mark.parametrize("file", PUBLIC)
def test_a_public_pair_binds_what_its_name_says(file):
    family, _, size = Path(file).stem.rpartition("_")
    run = built(file, bindings=("TASK = None",))
    assert gin.query_parameter("TASK_NAME/macro.value") == TASKS["ende"]
    assert run.plan.sampling == Greedy()
    models = {"target": preset(f"{family}_{size}"), "draft": preset(f"{family}_small")}
    assert run.plan.models() == models
    folder = f"{BUCKET}/{family.replace('t5_1_0', 't5')}"
    assert run.checkpoint_path.startswith(f"{folder}_{size.replace('b', 'B')}/checkpoint_")
    assert run.paths()["draft"].startswith(f"{folder}_small/checkpoint_")


def test_a_public_pair_summarises_and_samples():
    files = (PUBLIC[0], "tasks/cnndm.gin", "sampling/temperature.gin")
    plan = built(*files, bindings=("TASK = None",)).plan
    assert gin.query_parameter("TASK_NAME/macro.value") == TASKS["cnndm"]
    assert plan.sampling == Sampling(1.0) and plan.verifier == Block()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    """A gin file that makes all sizes tiny and has data, to be read after a run's own."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "test.tsv").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    text = TINY.replace("the folder", str(folder)).replace("the task", folder.name)
    scopes = re.findall(r"^(\w+)/t5\.T5Config:", (ROOT / "gin/models/t5.gin").read_text(), re.M)
    text += "".join(SIZE.format(scope=scope) for scope in scopes)
    (folder / "tiny.gin").write_text(text)
    return str(folder / "tiny.gin")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Checkpoints of random parameters, one for each model and seed."""
    folder = tmp_path_factory.mktemp("checkpoints")

    @functools.cache
    def save(model: T5Target, seed: int) -> str:
        path = folder / f"{len(list(folder.iterdir()))}"
        checkpoints.save(path, jax.jit(model.init)(jax.random.key(seed)), config=model.config)
        return str(path)

    return save


@pytest.fixture(scope="module")
def specdec(tiny, saved, cache, tmp_path_factory):
    """Runs a command on a file made tiny; returns its records."""
    folder = tmp_path_factory.mktemp("outputs")

    def run(command: str, file: str, *more: str) -> list[dict]:
        models = built(file, tiny, bindings=CHECKPOINTS).plan.models()
        target, draft = (saved(model, seed) for seed, model in enumerate(models.values()))
        output = folder / f"{command}_{Path(file).stem}.jsonl"
        flags = [
            f"--gin_file={file}",
            f"--gin_file={tiny}",
            f"--gin.CHECKPOINT_PATH={target!r}",
            f"--gin.DRAFT_CHECKPOINT_PATH={draft!r}",
            f"--compilation_cache_dir={cache}",
            f"--output_file={output}",
        ]
        assert cli.main([command, *flags, *more]) == 0
        return [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]

    return run


@pytest.mark.parametrize("file", few([*PAPER, *PUBLIC]))
def test_a_run_runs(specdec, file):
    texts = specdec("decode", file)
    assert [f"{text['input']}\t{text['target']}" for text in texts] == LINES
    gamma = gin.query_parameter("GAMMA/macro.value")
    for text in texts:
        assert 0 < len(text["tokens"]) <= 12
        assert text["drafted"][0] == gamma


def test_its_acceptance_is_measured(specdec):
    """What table 3 has for every pair, and table 5 for lenience, with the tables of n-grams."""
    texts = specdec("acceptance", "leviathan/ende_small_t1.gin", "--tables")
    assert len(texts) == len(LINES)
    for text in texts:
        assert set(text["accepted"]) == {"model", "unigram", "bigram"}
        for exact, *lenient in text["accepted"].values():
            assert 0 <= exact <= lenient[0] <= text["tokens"]
