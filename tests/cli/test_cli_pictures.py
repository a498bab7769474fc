"""A LLaVA and files of pictures through the commands: pytest tests/cli/test_cli_pictures.py

`GENERATED` is what transformers 5.24 generates for the golden model and the pictures below.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from specdec import checkpoints, cli, tasks
from specdec.models.llama import LlamaConfig

pytestmark = pytest.mark.ci
FOLDER = Path(__file__).resolve().parents[1] / "golden" / "hf_llava"
IMAGE, PAD = 59, 60
GENERATED = {
    "user: <image:{}/a.png> what?": [35, 25, 21, 17, 27, 35, 25, 56],
    "<image:{}/b.png> is": [48, 52, 17, 10, 17, 46, 35, 35],
    "user: hello there": [50, 17, 27, 6, 13, 13, 49, 3],
}
SEVERAL = {  # of transformers too, with the pixels of these pictures
    "<image:{0}/a.png> and <image:{0}/b.png> is": [39, 27, 3, 27, 58, 29, 55, 48],
    "the <image:{0}/b.png> cook <image:{0}/b.png> reads <image:{0}/a.png> a": [2],
}
LENGTHS = ('--gin.TASK_FEATURE_LENGTHS={"inputs":32,"targets":8}', "--gin.BUCKETS=()")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Has two pictures, the golden LLaVA with a tokenizer, and its language model as a draft."""
    image = pytest.importorskip("PIL.Image")
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("pictures")
    random = np.random.default_rng(0)
    for name in "ab":
        colours = random.integers(0, 256, (30, 40, 3), dtype=np.uint8)
        image.fromarray(colours).save(folder / f"{name}.png")
    target = folder / "target"
    shutil.copytree(FOLDER, target)
    pieces = ["<unk>", "<s>", "</s>", *map(chr, range(97, 123)), "▁", ":", "?", "."]
    pieces += [f"<x{i}>" for i in range(len(pieces), IMAGE)]
    ids = {piece: id for id, piece in enumerate(pieces)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=ids, merges=[], unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="never")
    made.decoder = tokenizers.decoders.Metaspace(prepend_scheme="never")
    made.add_special_tokens([*pieces[:3], "<image>", "<pad>"])
    made.save(str(target / "tokenizer.json"))
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    says = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True} | special
    (target / "tokenizer_config.json").write_text(json.dumps(says))
    config, params = checkpoints.config_from(target), checkpoints.load(target)
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(LlamaConfig)}
    own = {name: params[name] for name in ("decoder", "token_embedder")}
    given = checkpoints.text_model_from(target).kept()
    checkpoints.save(
        folder / "draft", own, config=LlamaConfig(**fields), format="huggingface", **given
    )
    return folder


@pytest.fixture
def flags(folder, cache):
    file = folder / "texts.txt"
    file.write_text("".join(f"{text.format(folder)}\n" for text in GENERATED))
    given = [f"--target={folder / 'target'}", f"--draft={folder / 'draft'}", "--gamma=2"]
    given += ["--gin_file=drafters/without_pictures.gin", f"--gin.IMAGE_ID={IMAGE}"]
    return [*given, f"--compilation_cache_dir={cache}", *LENGTHS], f"--input_file={file}"


def outputs(path):
    return [json.loads(line)["tokens"] for line in path.read_text().splitlines()]


def test_the_ids_of_transformers_with_a_draft_that_sees_no_picture(flags, tmp_path, capsys):
    given, texts = flags
    for more in ((), ("--batch_size=2", "--gin.REFILL=True")):
        out = tmp_path / f"out{len(more)}.jsonl"
        assert cli.main(["decode", *given, texts, *more, f"--output_file={out}"]) == 0
        assert outputs(out) == list(GENERATED.values())


@pytest.mark.parametrize(
    "more",
    [
        pytest.param((), marks=pytest.mark.slow),
        pytest.param(("--batch_size=2",), marks=pytest.mark.slow),
        ("--batch_size=2", "--refill"),
    ],
)
def test_there_is_room_for_all_pictures_of_a_text(flags, folder, tmp_path, more):
    texts, out = [*SEVERAL, *GENERATED], tmp_path / "out.jsonl"
    given = [f"--text={text.format(folder)}" for text in texts]
    assert cli.main(["decode", *flags[0], *given, *more, f"--output_file={out}"]) == 0
    assert outputs(out) == [*SEVERAL.values(), *GENERATED.values()]


def test_a_draft_without_pictures_needs_its_view(flags, capsys):
    given, texts = flags
    own = [flag for flag in given if "without" not in flag and "IMAGE" not in flag]
    assert cli.main(["decode", *own, texts]) == 2
    assert "let it draft without pictures, with --gin_file=drafters/w" in capsys.readouterr().err


@pytest.mark.slow
def test_every_command_reads_pictures(flags, folder, tmp_path):
    given, texts = flags
    data = folder / "test.tsv"
    data.write_text("a.png\tuser: <image> what?\tyes\nb.png\t<image> is\tno\n")
    task = ["--gin_file=tasks/local.gin", f'--gin.TASK_FILES={{"test":"{data}","train":"{data}"}}']
    task += ['--gin.TASK_COLUMNS=("files","inputs","targets")']
    passes = tmp_path / "passes.jsonl"
    commands = [
        ["verify", *given, texts, f"--output_file={tmp_path / 'certificate.json'}"],
        ["bench", *given, texts, "--repeats=1", f"--output_file={tmp_path / 'bench.jsonl'}"],
        ["acceptance", *given, texts, f"--output_file={passes}", "--tokens=16"],
        ["forecast", *given, texts, f"--passes={passes}"],
        ["decode", *given, texts, "--num_beams=2"],
        ["decode", *given, *task, "--dry_run"],
        ["eval", *given, *task, f"--output_dir={tmp_path / 'eval'}", "--compare", "--metric=bleu"],
        ["score", given[0], *task, *LENGTHS],
    ]
    for command in commands:
        assert cli.main(command) == 0, command


def test_the_vocabulary_of_a_directory_reads_pictures(folder):
    found = checkpoints.vocabulary_from(folder / "target")
    assert found is not None and isinstance(found.media, tasks.WithPictures)
    assert (found.media.image_id, found.media.patches) == (IMAGE, 4)
    assert found.media.settings == checkpoints.picture_settings_from(FOLDER)
    draft = checkpoints.vocabulary_from(folder / "draft")
    assert draft is not None and draft.media is None
