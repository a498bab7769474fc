"""Commands on other families than T5: pytest -m ci tests/cli/test_families_ids.py

The expected ids and texts are those that transformers 5.24 generates for the golden models and the
inputs here; see tests/golden/README.md.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import wave
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from specdec import checkpoints, cli, tasks
from specdec.models.families import model_of
from specdec.models.llama import LlamaConfig

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


def lengths(inputs: int, targets: int) -> tuple[str, str]:
    """Returns the flags for lengths without buckets."""
    sizes = f"--gin.TASK_FEATURE_LENGTHS={{'inputs': {inputs}, 'targets': {targets}}}"
    return sizes, "--gin.BUCKETS=()"


def saved_tokenizer(folder: Path, tokenizer: Any, record: Mapping[str, Any]) -> None:
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(record))


# T5Gemma.

T5GEMMA = GOLDEN / "prompts" / "t5gemma"
T5GEMMA_TEXTS = json.loads((T5GEMMA / "generated.json").read_text())


def make_t5gemma(folder: Path) -> None:
    """A draft of the same vocabulary, which is near the target, as transformers saves it."""
    text, config = checkpoints.text_model_from(T5GEMMA), checkpoints.config_from(T5GEMMA)
    params = checkpoints.load(T5GEMMA, config=config)
    noise = model_of(config).init(jax.random.key(0))
    params = jax.tree.map(lambda a, b: a + 0.1 * b, params, noise)
    checkpoints.save(folder / "draft", params, config=config, format="huggingface", **text.kept())


# LLaVA.

IMAGE, PAD = 59, 60
PICTURES = {  # the last two have several pictures
    "user: <image:a.png> what?": [35, 25, 21, 17, 27, 35, 25, 56],
    "<image:b.png> is": [48, 52, 17, 10, 17, 46, 35, 35],
    "user: hello there": [50, 17, 27, 6, 13, 13, 49, 3],
    "<image:a.png> and <image:b.png> is": [39, 27, 3, 27, 58, 29, 55, 48],
    "the <image:b.png> cook <image:b.png> reads <image:a.png> a": [2],
}


def make_llava(folder: Path) -> None:
    """Two pictures, the golden LLaVA with a tokenizer, and its language model as a draft."""
    image = pytest.importorskip("PIL.Image")
    tokenizers = pytest.importorskip("tokenizers")
    random = np.random.default_rng(0)
    for name in "ab":
        colours = random.integers(0, 256, (30, 40, 3), dtype=np.uint8)
        image.fromarray(colours).save(folder / f"{name}.png")
    target = shutil.copytree(GOLDEN / "hf_llava", folder / "target")
    pieces = ["<unk>", "<s>", "</s>", *map(chr, range(97, 123)), "▁", ":", "?", "."]
    pieces += [f"<x{i}>" for i in range(len(pieces), IMAGE)]
    ids = {piece: id for id, piece in enumerate(pieces)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=ids, merges=[], unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="never")
    made.decoder = tokenizers.decoders.Metaspace(prepend_scheme="never")
    made.add_special_tokens([*pieces[:3], "<image>", "<pad>"])
    special = dict(zip(SPECIAL, ("<s>", "</s>", "<unk>", "<pad>"), strict=True))
    record = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True}
    saved_tokenizer(target, made, record | special)
    config, params = checkpoints.config_from(target), checkpoints.load(target)
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(LlamaConfig)}
    own = {name: params[name] for name in ("decoder", "token_embedder")}
    given = checkpoints.text_model_from(target).kept()
    checkpoints.save(
        folder / "draft", own, config=LlamaConfig(**fields), format="huggingface", **given
    )


# Whisper.

WHISPER = GOLDEN / "hf_whisper"
WINDOW = 3840  # samples, 24 frames
LETTERS = 'Ġabcdefghijklmnopqrstuvwxyz0123456789.,?!-:;"'
END, ROLES = "<|endoftext|>", ("startoftranscript", "en", "de", "translate", "transcribe")
PREFIX = [47, 50, 51]  # of which transformers returns what follows
SOUNDS = {
    "a.wav": [*PREFIX, 38, 38, 56, *[38] * 8, 53, 42, 42, 38, 38, 42, 38, 38, 42, *[38] * 4],
    "b.wav": [*PREFIX, 38, 45],
}


def make_whisper(folder: Path) -> None:
    """The model, which has a tokenizer like those of its releases, and files."""
    tokenizers = pytest.importorskip("tokenizers")
    ids = {letter: id for id, letter in enumerate(LETTERS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=ids, merges=[]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens([END, *(f"<|{x}|>" for x in (*ROLES, "notimestamps"))])
    tokenizer.add_tokens([f"<|{0.02 * step:.2f}|>" for step in range(9)])
    record = {"tokenizer_class": "WhisperTokenizer", **dict.fromkeys(SPECIAL, END)}
    saved_tokenizer(shutil.copytree(WHISPER, folder / "target"), tokenizer, record)
    sound = np.load(WHISPER / "golden.npz")["sound"]
    parts = {"a": sound[:WINDOW], "b": sound[6000:9000], "long": sound, "none": sound[:0]}
    for name, samples in parts.items():
        with wave.open(str(folder / f"{name}.wav"), "wb") as opened:
            opened.setnchannels(1)
            opened.setsampwidth(2)
            opened.setframerate(16_000)
            opened.writeframes(samples.tobytes())
    (folder / "text.wav").write_text("not a sound")


class Family(NamedTuple):
    """How the files of a family are made, flags of all its commands, and the ids of its inputs."""

    make: Callable[[Path], None]
    flags: tuple[str, ...]
    outputs: Mapping[str, list[int]]


PAIR = ("--target=target", "--draft=draft", "--gamma=2")
FAMILIES = {
    "t5gemma": Family(
        make_t5gemma,
        (f"--target={T5GEMMA}", *PAIR[1:], *lengths(24, 12)),
        {one["input"]: one["output"] for one in T5GEMMA_TEXTS},
    ),
    "llava": Family(
        make_llava,
        (
            *PAIR,
            "--gin_file=drafters/without_pictures.gin",
            f"--gin.IMAGE_ID={IMAGE}",
            *lengths(32, 8),
        ),
        PICTURES,
    ),
    "whisper": Family(
        make_whisper,
        (PAIR[0], "--gin_file=transcribe.gin", "--gin.LANGUAGE='en'", lengths(1, 27)[0]),
        SOUNDS,
    ),
}


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    """Returns the folder of a family, with its files."""
    made: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            FAMILIES[name].make(made[name])
        return made[name]

    return folder


@pytest.fixture
def run(folder_of, cache, monkeypatch, capsys):
    """Runs a command of a family in its folder; returns the exit code, stdout and stderr."""

    def command(name: str, command: str, *more: str):
        monkeypatch.chdir(folder_of(name))
        capsys.readouterr()
        kept = f"--compilation_cache_dir={cache}"
        try:
            code = cli.main([command, *FAMILIES[name].flags, kept, *more])
        except SystemExit as stopped:
            code = stopped.code
        return code, *capsys.readouterr()

    return command


@pytest.fixture
def lines(run, tmp_path):
    """Decodes the inputs of a family; returns the lines of JSON."""

    def decode(name: str, *more: str) -> list[dict]:
        texts, out = tmp_path / "texts.txt", tmp_path / "out.jsonl"
        texts.write_text("".join(f"{text}\n" for text in FAMILIES[name].outputs))
        flags = f"--input_file={texts}", f"--output_file={out}"
        code, _, err = run(name, "decode", *flags, *more)
        assert code == 0, err
        return [json.loads(line) for line in out.read_text().splitlines()]

    return decode


@pytest.mark.ci
@pytest.mark.parametrize(
    "name, more",
    [
        ("t5gemma", ("--batch_size=2",)),
        ("llava", ()),
        ("llava", ("--batch_size=2", "--refill")),
        ("whisper", ("--batch_size=2",)),
    ],
)
def test_a_family_writes_the_ids_of_transformers(lines, name, more):
    written = lines(name, *more)
    assert [line["tokens"] for line in written] == list(FAMILIES[name].outputs.values())
    if name == "t5gemma":
        assert [line["prediction"] for line in written] == [one["text"] for one in T5GEMMA_TEXTS]
        assert any(sum(line["accepted"]) for line in written)
    if name == "whisper":
        assert written[1]["prediction"] == ","  # without the names of language and task


def test_inputs_of_t5gemma_are_framed_as_in_transformers():
    vocabulary = tasks.for_texts(tasks.recorded_vocabulary(*checkpoints.vocabulary_from(T5GEMMA)))
    for one in T5GEMMA_TEXTS:
        assert tasks.input_ids(vocabulary, one["input"]) == one["ids"]
        assert vocabulary.decode(one["output"]) == one["text"]
    text = checkpoints.text_model_from(T5GEMMA)
    assert (text.start_id, text.pad_id, text.stop_ids) == (2, 0, (1, 6))
    assert ("inputs", "begin with [2], and have no EOS") in list(text.lines())


@pytest.mark.ci
def test_a_draft_without_pictures_needs_its_view(folder_of, monkeypatch, capsys):
    monkeypatch.chdir(folder_of("llava"))
    assert cli.main(["decode", *PAIR, *lengths(32, 8), "--text=<image:a.png> is"]) == 2
    assert "let it draft without pictures, with --gin_file=drafters/w" in capsys.readouterr().err


@pytest.mark.slow
def test_every_command_reads_pictures(run, folder_of, tmp_path):
    data = folder_of("llava") / "test.tsv"
    data.write_text("a.png\tuser: <image> what?\tyes\nb.png\t<image> is\tno\n")
    task = ["--gin_file=tasks/local.gin", f'--gin.TASK_FILES={{"test":"{data}","train":"{data}"}}']
    task += ['--gin.TASK_COLUMNS=("files","inputs","targets")']
    text, recorded = "--text=user: <image:a.png> what?", tmp_path / "passes.jsonl"
    for command, more in (
        ("verify", [text, f"--output_file={tmp_path / 'certificate.json'}"]),
        ("bench", [text, "--repeats=1", f"--output_file={tmp_path / 'bench.jsonl'}"]),
        ("acceptance", [text, f"--output_file={recorded}", "--tokens=16"]),
        ("forecast", [text, f"--passes={recorded}"]),
        ("decode", [text, "--num_beams=2"]),
        ("decode", [*task, "--dry_run"]),
        ("eval", [*task, f"--output_dir={tmp_path / 'eval'}", "--compare", "--metric=bleu"]),
        ("score", task),
    ):
        assert run("llava", command, *more)[0] == (command == "verify"), command  # one text


@pytest.mark.ci
def test_the_vocabulary_of_a_directory_reads_pictures(folder_of):
    target, draft = (
        checkpoints.vocabulary_from(folder_of("llava") / x) for x in ("target", "draft")
    )
    assert isinstance(target.media, tasks.WithPictures) and draft.media is None
    assert (target.media.image_id, target.media.patches) == (IMAGE, 4)
    assert target.media.settings == checkpoints.picture_settings_from(GOLDEN / "hf_llava")


@pytest.mark.slow
def test_recorded_sounds_predict_the_speed_of_a_draft_on_the_shared_encoder(run, folder_of):
    folder = folder_of("whisper")
    trim = ["--shared_encoder", "--decoder_layers=0", f"--output={folder / 'draft'}"]
    assert cli.main(["trim", f"--input={folder / 'target'}", *trim]) == 0
    given = ["--draft=draft", "--text=b.wav"]
    assert run("whisper", "acceptance", *given, "--tokens=4", "--output_file=passes.jsonl")[0] == 0
    code, out, _ = run("whisper", "forecast", *given, "--passes=passes.jsonl", "--gammas=1-2")
    assert code == 0 and "best     " in out


@pytest.mark.ci
@pytest.mark.parametrize(
    "text, says",
    [
        ("missing.wav", "sound 'missing.wav' cannot be read (No such file or directory); give a"),
        ("text.wav", "text.wav is no sound that can be read (Format not recognised); convert it"),
        ("none.wav", "sound 'none.wav' has no samples; give a file or a part that has some"),
        ("a.wav#1", "sound 'a.wav#1' has no samples"),
    ],
)
def test_what_cannot_be_heard_is_one_line(run, text, says):
    code, out, err = run("whisper", "decode", f"--text={text}")
    (line,) = (line for line in err.splitlines() if line.startswith("specdec: "))
    assert code == 2 and says in line and not out


@pytest.mark.ci
def test_other_commands_refuse_a_long_sound(run, tmp_path):
    (tmp_path / "pairs").write_text("long.wav\ta\n")
    given = [f"--input_file={tmp_path / 'pairs'}", f"--output_dir={tmp_path / 'out'}"]
    code, _, err = run("whisper", "eval", "--max_length=27", *given)
    says = "is 0.7 s long, and the target reads 0.24 in one window; give it to `specdec decode`"
    assert code == 2 and says in err


def test_parts_of_a_long_sound_begin_at_any_second(folder_of):
    vocabulary = tasks.WithSound(tasks.Bytes()).plain()
    name, shape = folder_of("whisper") / "long.wav", np.zeros([2, 8, 24], np.float32)
    found = vocabulary.inputs(np.zeros([2, 1], np.int32), [f"{name}#0.24"], shape)
    sound = np.load(WHISPER / "golden.npz")["sound"][WINDOW : 2 * WINDOW].astype(np.float32)
    np.testing.assert_array_equal(found[0], tasks.sound.log_mel(sound[None] / 2**15, 8)[0])
    assert not found[1].any()  # a row of padding


def test_a_task_checks_that_its_files_are_there(folder_of):
    task = folder_of("whisper") / "task.tsv"
    task.write_text("b.wav\ta text\nmissing.wav\tanother\n")
    files, columns = {"test": str(task)}, ("files", "targets")
    with pytest.raises(tasks.TaskError, match="task.tsv, line 2: there is no file .*missing.wav;"):
        tasks.local_task("sounds", files, tasks.WithSound(tasks.Bytes()), columns=columns)
