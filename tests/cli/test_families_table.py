"""Which commands work with which families: pytest -m slow tests/cli/test_families_table.py

Each command runs on a tiny pair of each family, with a vocabulary of bytes. It works, or refuses in
one line. docs/reference/families.md has the table. T5's column is what the other tests are about,
and `compile` is for TPUs: configs/yan has compiled pairs.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import jax
import pytest
from support import few

from specdec import checkpoints, cli
from specdec.models.families import FAMILIES, model_of
from specdec.models.gpt2 import Gpt2Config
from specdec.models.llama import LlamaConfig
from specdec.models.llava import ClipConfig, LlavaConfig
from specdec.models.opt import OptConfig
from specdec.models.t5gemma import T5GemmaConfig
from specdec.models.t5gemma2 import T5Gemma2Config

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "families.md"
SIZES = {
    "vocab_size": 261,
    "emb_dim": 16,
    "num_heads": 4,
    "head_dim": 4,
    "mlp_dim": 20,
    "num_decoder_layers": 2,
    "pad_id": 0,
    "stop_ids": (1,),
}
CONFIGS = {
    "llama": LlamaConfig(**SIZES, num_kv_heads=2),
    "llava": LlavaConfig(
        **SIZES,
        num_kv_heads=2,
        vision=ClipConfig(
            image_size=4, patch_size=2, emb_dim=8, num_heads=2, mlp_dim=12, num_layers=2
        ),
        image_id=260,
    ),
    "opt": OptConfig(**SIZES, num_kv_heads=4, context=64),
    "gpt2": Gpt2Config(**SIZES, num_kv_heads=4, context=64),
    "t5gemma": T5GemmaConfig(
        **SIZES,
        num_kv_heads=2,
        encoder_emb_dim=12,
        encoder_num_heads=2,
        encoder_num_kv_heads=1,
        encoder_head_dim=4,
        encoder_mlp_dim=20,
        num_encoder_layers=2,
    ),
    "t5gemma2": T5Gemma2Config(
        **SIZES,
        num_kv_heads=2,
        encoder_emb_dim=16,
        encoder_num_heads=4,
        encoder_num_kv_heads=2,
        encoder_head_dim=4,
        encoder_mlp_dim=20,
        num_encoder_layers=2,
        pattern=2,
    ),
}
LENGTHS = (
    '--gin.TASK_FEATURE_LENGTHS={"inputs":16,"targets":8}',
    "--gin.BUCKETS=()",
    "--compilation_cache_dir=CACHE",
)
ONE = "--text=a cat sat"
PAIR = "--target=DIR/target", "--draft=DIR/draft", "--gamma=2"
# command -> its flags; and those that write what it reads.
COMMANDS = {
    "decode": (PAIR, ONE, LENGTHS),
    "verify": (PAIR, ONE, LENGTHS, "--output_file=DIR/certificate.json"),
    "bench": (PAIR, ONE, LENGTHS, "--repeats=1", "--output_file=DIR/bench.jsonl"),
    "acceptance": (PAIR, ONE, LENGTHS, "--output_file=DIR/passes.jsonl"),
    "forecast": (PAIR, ONE, LENGTHS, "--passes=DIR/passes.jsonl", "--gammas=1"),
    "tune": (PAIR, "--input_file=DIR/texts.tsv", LENGTHS, "--output_dir=DIR/tuned", "--tokens=200"),
    "eval": (
        PAIR,
        "--input_file=DIR/texts.tsv",
        LENGTHS,
        "--limit=2",
        "--output_dir=DIR/eval",
        "--metric=bleu",
    ),
    "score": ("--target=DIR/target", LENGTHS, "--pairs=DIR/texts.tsv", "--limit=2"),
    "train": ("--gin_file=DIR/train.gin", "--output_dir=DIR/trained"),
    "distill": (
        "--target=DIR/target",
        "--inputs=DIR/texts.tsv",
        "--output_dir=DIR/distilled",
        "--task_prefix=",
        "--gin.DRAFT_STEPS=2",
        "--gin.DRAFT_BATCH_SIZE=2",
        "--gin.DRAFT_HEAD=None",
        "--gamma=1",
        LENGTHS,
    ),
    "convert": ("--input=DIR/target", "--output=DIR/theirs", "--format=huggingface"),
    "check": ("DIR/target",),
    "trim": ("--input=DIR/target", "--output=DIR/part", "--decoder_layers=first:1"),
    "grow": ("--input=DIR/target", "--output=DIR/grown", "--preset=any"),
}
AFTER = {"forecast": ("acceptance",)}
REFUSED = {"grow": "models of the family '{}' do not grow; give one of t5, t5_draft, heads"}
TRAIN = """
from __gin__ import dynamic_registration
from specdec import checkpoints
from specdec import tasks

include 'train.gin'
include 'tasks/local.gin'

MODEL = @checkpoints.model_from()
checkpoints.model_from.path = 'DIR/draft'
INITIAL_CHECKPOINT_PATH = 'DIR/draft'
TASK_NAME = 'of_FAMILY'
TASK_FILES = {'train': 'DIR/texts.tsv'}
VOCABULARY = @tasks.Bytes()
tasks.Bytes.extra_ids = 2
TASK_FEATURE_LENGTHS = {'inputs': 16, 'targets': 8}
SPLIT = 'train'
STEPS = 2
BATCH_SIZE = 2
"""


@pytest.fixture(scope="module")
def run(cache, tmp_path_factory):
    """Runs a command on a family's pair, once; returns its exit code and stderr."""

    @functools.cache
    def folder_of(family: str) -> Path:
        folder = tmp_path_factory.mktemp(family)
        for seed, (name, layers) in enumerate({"target": 2, "draft": 1}.items()):
            config = dataclasses.replace(CONFIGS[family], num_decoder_layers=layers)
            params = model_of(config).init(jax.random.key(seed))
            vocabulary = checkpoints.Vocabulary(None, 2)
            checkpoints.save(folder / name, params, config=config, vocabulary=vocabulary)
        lines = (f"a cat {number}\tmat {number}\n" for number in range(40))
        (folder / "texts.tsv").write_text("".join(lines))
        text = TRAIN.replace("DIR", str(folder)).replace("FAMILY", family)
        (folder / "train.gin").write_text(text)
        return folder

    @functools.cache
    def done(family: str, command: str) -> int:
        for first in AFTER.get(command, ()):
            done(family, first)
        flags = [
            flag
            for given in COMMANDS[command]
            for flag in ([given] if isinstance(given, str) else given)
        ]
        folder = str(folder_of(family))
        return cli.main(
            [command, *(flag.replace("DIR", folder).replace("CACHE", str(cache)) for flag in flags)]
        )

    return done


@pytest.mark.parametrize("family", few(CONFIGS))
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(name, marks=pytest.mark.ci if name in ("check", "grow") else pytest.mark.slow)
        for name in COMMANDS
    ],
)
def test_a_command_works_or_refuses_in_one_line(run, family, command, capsys):
    code, err = run(family, command), capsys.readouterr().err
    if command in REFUSED:
        assert (code, err) == (2, f"specdec: {REFUSED[command].format(family)}\n")
    else:
        assert code == 0, err


@pytest.mark.ci
def test_a_text_with_the_id_of_a_picture_is_refused(cache, tmp_path, capsys):
    config = dataclasses.replace(CONFIGS["llava"], image_id=ord("a") + 3)  # of bytes
    vocabulary = checkpoints.Vocabulary(None, 2)
    params = model_of(config).init(jax.random.key(0))
    checkpoints.save(tmp_path / "llava", params, config=config, vocabulary=vocabulary)
    pair = f"--target={tmp_path / 'llava'}", f"--draft={tmp_path / 'llava'}"
    lengths = (flag.replace("CACHE", str(cache)) for flag in LENGTHS)
    assert cli.main(["decode", *pair, "--gamma=2", ONE, *lengths]) == 2
    said = "prompt 'a cat sat' names 0 pictures, and has the id 100 3 times; write <image:FILE>"
    assert capsys.readouterr().err.splitlines()[-1] == f"specdec: {said} for each picture"


def test_the_page_has_the_table():
    rows = [f"| command | {' | '.join(CONFIGS)} |", f"|---{'|---' * len(CONFIGS)}|"]
    for command in COMMANDS:
        cells = ("refused" if command in REFUSED else "works" for _ in CONFIGS)
        rows.append(f"| `{command}` | {' | '.join(cells)} |")
    refusals = [f"- `{command}`: `{said.format('NAME')}`" for command, said in REFUSED.items()]
    text = PAGE.read_text(encoding="utf-8")
    for part in (rows, refusals):
        assert (expected := "\n".join(part)) in text, f"{PAGE.name} should have\n{expected}"
    own = {name for name, row in FAMILIES.items() if row.config.__module__.startswith("specdec.")}
    assert CONFIGS.keys() == own - {"t5", "t5_draft", "heads", "whisper"}  # it reads sound
