"""A run of two tiny models of bytes, what commands write and say, and the files of mistakes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from support import tiny_t5

from specdec import checkpoints, tasks
from specdec.checkpoints import tables
from specdec.common import demo
from specdec.models.t5 import T5Target

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "docs" / "results" / "amd_epyc_avx512_2_cores" / "ende_t0.jsonl.summary.json"
LINES = ["one\teins", "two words\tzwei Wörter", "three\tdrei", "a\tein", "five\tfünf"]
RUN = """
from __gin__ import dynamic_registration
from specdec import cli
from specdec import tasks

include 'decode.gin'
include 'drafters/autoregressive.gin'
include 'models/from_checkpoint.gin'
include 'tasks/local.gin'

FOLDER = 'the folder'
CHECKPOINT_PATH = @target/cli.path_in()
DRAFT_CHECKPOINT_PATH = @draft/cli.path_in()
VOCABULARY = @tasks.Bytes()
TASK_NAME = 'the task'
TASK_FILES = {'test': @test/cli.path_in()}
TASK_FEATURE_LENGTHS = {'inputs': 16, 'targets': 8}
GAMMA = 2

cli.path_in.folder = %FOLDER
target/cli.path_in.name = 'target'
draft/cli.path_in.name = 'draft'
test/cli.path_in.name = 'test.tsv'
"""
TRAIN = """
from __gin__ import dynamic_registration
from specdec import tasks
from specdec.models import t5

include 'train.gin'
include 'tasks/local.gin'

MODEL = @t5.T5Target()
t5.T5Target.config = @t5.T5Config()
t5.T5Config:
  vocab_size = 261
  emb_dim = 11
  num_heads = 2
  head_dim = 4
  mlp_dim = 11
  num_encoder_layers = 1
  num_decoder_layers = 1
TASK_NAME = 'yard'
TASK_FILES = {'test': 'the folder/test.tsv'}
VOCABULARY = @tasks.Bytes()
TASK_FEATURE_LENGTHS = {'inputs': 16, 'targets': 8}
SPLIT = 'test'
STEPS = 2
BATCH_SIZE = 2
"""


def records(path):
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def the_line(code, out, err):
    """The one line of a mistake, after all that it must not come with."""
    assert code == 2 and out == ""
    (line,) = err.splitlines()
    assert line.startswith("specdec: ")
    return line


def model(width: int, vocab_size: int) -> T5Target:
    return T5Target(tiny_t5(vocab_size, width, head_dim=4))


def write_run(folder: Path, task: str) -> None:
    """Writes the gin file and the texts of a run."""
    (folder / "test.tsv").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    run = RUN.replace("the folder", str(folder)).replace("the task", task)
    (folder / "run.gin").write_text(run)


def pair(folder: Path, task: str) -> Path:
    """Fills an empty folder with a run of two models, without a mistake."""
    write_run(folder, task)
    _save(folder / "target", 11, 261)
    _save(folder / "draft", 7, 263)
    return folder


def make(yard: Path) -> Path:
    """Fills an empty folder with all that the table names."""
    pair(yard, "yard")
    (yard / "train.gin").write_text(TRAIN.replace("the folder", str(yard)))
    _texts(yard)
    _gin_files(yard)
    _save(yard / "narrow", 7, 100)
    _save(yard / "t5x", 11, 261, format="t5x")
    _save(yard / "hf", 11, 261, format="huggingface")
    pieces = checkpoints.Vocabulary(Path(demo.path("vocabulary.model")))
    _save(yard / "pieces", 11, 2048, vocabulary=pieces)
    _save(yard / "hf_pieces", 11, 2048, vocabulary=pieces, format="huggingface")
    (yard / "other_ids.model").write_bytes(_with_other_ids(pieces.path.read_bytes()))
    (yard / "adapter").mkdir()
    (yard / "adapter" / "adapter_config.json").write_text("{}")
    for name, (of, damage) in _DAMAGED.items():
        shutil.copytree(yard / of, yard / name)
        damage(yard / name)
    _table(yard / "store")
    _outputs(yard)
    return yard


def _table(path: Path) -> None:
    """A store of texts of another vocabulary than the runs'."""
    tables.save(path, "store", tables.store([[0, 3, 4, 1]]), tasks.demo_vocabulary().plain())


def _save(path: Path, width: int, vocab_size: int, **options) -> None:
    """A checkpoint of zeros: nothing is decoded with it."""
    target = model(width, vocab_size)
    shapes = target.parameter_shapes()
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    checkpoints.save(path, params, config=target.config, **options)


def _texts(yard: Path) -> None:
    """Files of texts with mistakes in them."""
    contents = {
        "latin1.tsv": "zwei Wörter\tdeux mots\n".encode("latin-1"),
        "middle.tsv": b"a\tb\n\xff\xfe\tb\nc\td\n",
        "columns.tsv": b"a\tb\tc\n",
        "no_tab.tsv": b"a\tb\nno tab\n",
        "empty.tsv": b"",
        "elsewhere.tsv": b"../yard/test.tsv\t<image>\n",
        "inputs.txt": b"one\ntwo\n",
        "many.txt": b"".join(b"%d\n" % number for number in range(40)),
        "blank.tsv": b"a\tb\n\nc\td\n",
        "long.tsv": b"a text of many more bytes than sixteen\tb\n",
        "noise.bin": bytes(range(256)) * 9,
        "noise.model": bytes(range(256)) * 9,
        "empty.model": b"",
    }
    for name, content in contents.items():
        (yard / name).write_bytes(content)
    (yard / "folder").mkdir()
    (yard / "folder.tsv").mkdir()


def _gin_files(yard: Path) -> None:
    contents = {
        "noise.gin": bytes(range(256)) * 9,
        "zeros.gin": b"\0" * 99,
        "empty.gin": b"",
        "open.gin": b"from __gin__ import dynamic_registration\nGAMMA = (3\n",
        "string.gin": b"from __gin__ import dynamic_registration\nSPLIT = 'test\n",
        "latin1.gin": "SPLIT = 'prüf'\n".encode("latin-1"),
        "loop.gin": f"include '{yard}/loop.gin'\n".encode(),
        "absent.gin": b"\ninclude 'none.gin'\n",
        "module.gin": b"from __gin__ import dynamic_registration\nfrom specdec import verifers\n",
        "own.gin": b"from __gin__ import dynamic_registration\nimport own_drafter\n",
        "misspelt.gin": b"from __gin__ import dynamic_registration\nGAMA = 3\n",
        "class.gin": b"from specdec import cli\ncli.DecodeRum.seed = 1\n",
        "field.gin": b"from specdec import cli\ncli.Data.sed = 1\n",
        "syntax.gin": b"from __gin__ import dynamic_registration\nGAMMA 3\n",
        "unquoted.gin": b"from __gin__ import dynamic_registration\nSPLIT = test\n",
    }
    for name, content in contents.items():
        (yard / name).write_bytes(content)
    (yard / "own_drafter.py").write_text("class Drafter:\n    def propose(self):\n    pass\n")


def _record(**changes) -> Callable[[Path], None]:
    """Changes what config.json says; None takes a field out."""

    def damage(folder: Path) -> None:
        record = json.loads((folder / "config.json").read_text()) | changes
        kept = {name: value for name, value in record.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(kept))

    return damage


def _model(**changes) -> Callable[[Path], None]:
    """Changes the model's fields in config.json."""

    def damage(folder: Path) -> None:
        record = json.loads((folder / "config.json").read_text())
        record["model"] |= changes
        (folder / "config.json").write_text(json.dumps(record))

    return damage


def _write(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


def _cut(pattern: str) -> Callable[[Path], None]:
    """Leaves the first half of each file that matches: not all of Orbax's are read."""

    def damage(folder: Path) -> None:
        for file in folder.glob(pattern):
            content = file.read_bytes()
            file.write_bytes(content[: len(content) // 2])

    return damage


def _without(pattern: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        for file in folder.glob(pattern):
            shutil.rmtree(file) if file.is_dir() else file.unlink()

    return damage


def _header(header: object, data: bytes = b"") -> Callable[[Path], None]:
    text = json.dumps(header).encode()
    return _write("model.safetensors", len(text).to_bytes(8, "little") + text + data)


def _with_other_ids(serialized: bytes) -> bytes:
    """SentencePiece's own ids, 0 for unknown and 2 for the end, instead of T5's."""
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString(serialized)
    first = model.pieces[:3]
    for piece, name, kind in zip(first, ("<unk>", "<s>", "</s>"), (2, 3, 3), strict=True):
        piece.piece, piece.type = name, kind
    return model.SerializeToString()


def _json(name: str, **record) -> Callable[[Path], None]:
    return _write(name, json.dumps(record).encode())


def _generation(**settings) -> Callable[[Path], None]:
    return _json("generation_config.json", decoder_start_token_id=0, eos_token_id=1, **settings)


def _both(*damages: Callable[[Path], None]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        for one in damages:
            one(folder)

    return damage


_ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
_NEXT = {"data_offsets": [8, 16]}
_DAMAGED: dict[str, tuple[str, Callable[[Path], None]]] = {
    "no_config": ("target", _without("config.json")),
    "config_noise": ("target", _write("config.json", bytes(range(128, 256)))),
    "config_text": ("target", _write("config.json", b"{")),
    "config_list": ("target", _write("config.json", b"[]")),
    "config_version": ("target", _record(version=99)),
    "config_family": ("target", _record(family="rnn")),
    "config_family_kind": ("target", _record(family=5)),
    "config_model_kind": ("target", _record(model=[1])),
    "config_model_fields": ("target", _model(width=3)),
    "config_model_zero": ("target", _model(emb_dim=0)),
    "config_model_word": ("target", _model(emb_dim="eleven")),
    "config_model_dtype": ("target", _model(dtype="float99")),
    "config_model_activations": ("target", _model(mlp_activations=["swish"])),
    "config_model_activations_kind": ("target", _model(mlp_activations=3)),
    "config_other_size": ("target", _model(emb_dim=12)),
    "config_vocabulary_kind": ("pieces", _record(vocabulary="spiece.model")),
    "config_vocabulary_elsewhere": (
        "pieces",
        _record(vocabulary={"file": "../pieces/vocabulary.model", "sha256": ""}),
    ),
    "config_vocabulary_fields": ("pieces", _record(vocabulary={"name": "x"})),
    "vocabulary_gone": ("pieces", _without("*.model")),
    "vocabulary_changed": ("pieces", _write("vocabulary.model", b"noise")),
    "manifest_noise": ("target", _write("params/manifest.ocdbt", bytes(range(256)))),
    "manifest_empty": ("target", _write("params/manifest.ocdbt", b"")),
    "arrays_cut": ("target", _cut("params/**/d/*")),
    "arrays_gone": ("target", _without("params/**/d")),
    "t5x_noise": ("t5x", _write("checkpoint", bytes(range(256)))),
    "t5x_empty": ("t5x", _write("checkpoint", b"")),
    "t5x_array_gone": ("t5x", _without("target.encoder.layers_0.mlp.wo.kernel")),
    "t5x_chunk_gone": ("t5x", _without("target.*/0*")),
    "t5x_chunk_noise": ("t5x", lambda folder: _spoil(folder, "target.*/0*")),
    "t5x_zarray_noise": ("t5x", lambda folder: _spoil(folder, "target.*/.zarray")),
    "t5x_no_config": ("t5x", _without("config.json")),
    "hf_noise": ("hf", _write("model.safetensors", bytes(range(256)))),
    "hf_pointer": (
        "hf",
        _write("model.safetensors", b"version https://git-lfs.github.com/spec/v1\nsize 9\n"),
    ),
    "hf_cut": ("hf", _cut("model.safetensors")),
    "hf_header_list": ("hf", _header([])),
    "hf_header_entry": ("hf", _header({"shared.weight": 3})),
    "hf_header_fields": ("hf", _header({"shared.weight": {}})),
    "hf_header_shape": ("hf", _header({"shared.weight": _ENTRY | {"shape": [-2]}}, b"\0" * 8)),
    "hf_header_integers": ("hf", _header({"shared.weight": _ENTRY | {"dtype": "I32"}}, b"\0" * 8)),
    "hf_config_kind": ("hf", _record(model_type="bert")),
    "hf_config_text": ("hf", _write("config.json", b"{")),
    "hf_config_fields": ("hf", _record(d_model=None)),
    "hf_config_word": ("hf", _record(d_model="eleven")),
    "hf_names_prefix": ("hf", _record(task_specific_params={"spelling": {"prefix": "spell: "}})),
    "hf_no_arrays": ("hf", _without("model.safetensors")),
    "hf_padding": ("hf", _generation(pad_token_id=261)),
    "hf_prefix": ("hf", _header({"module.shared.weight": _ENTRY}, b"\0" * 8)),
    "hf_encoder": (
        "hf",
        _header({"shared.weight": _ENTRY, "classifier": _ENTRY | _NEXT}, b"\0" * 16),
    ),
    "hf_elsewhere": (
        "hf",
        _both(
            _without("model.safetensors"),
            _json("model.safetensors.index.json", weight_map={"a": "../hf/model.safetensors"}),
        ),
    ),
    "hf_adapter": ("hf", _header({"shared.base_layer.weight": _ENTRY}, b"\0" * 8)),
    "hf_float8": ("hf", _header({"shared.weight": _ENTRY | {"dtype": "F8_E4M3"}}, b"\0" * 8)),
    "hf_quantised": ("hf", _record(quantization_config={"quant_method": "fp8"})),
    "gen_text": ("hf", _write("generation_config.json", b"{")),
    "gen_beams": ("hf", _generation(num_beams=4)),
    "gen_samples": ("hf", _generation(num_return_sequences=3)),
    "gen_sampled": ("hf", _generation(do_sample=True, temperature=0.7)),
    "gen_encoder_ngrams": ("hf", _generation(encoder_no_repeat_ngram_size=3)),
    "gen_encoder_penalty": ("hf", _generation(encoder_repetition_penalty=1.2)),
    "gen_bias": ("hf", _generation(sequence_bias=[[[5], -1.0]])),
    "gen_decay": ("hf", _generation(exponential_decay_length_penalty=[5, 1.1])),
    "gen_strings": ("hf", _generation(stop_strings=["."])),
    "gen_seconds": ("hf", _generation(max_time=1.5)),
    "gen_watermark": ("hf", _generation(watermarking_config={"bias": 2.0})),
    "gen_decoder_ids": ("hf", _generation(forced_decoder_ids=[[1, 5]])),
    "gen_misspelt": ("hf", _generation(surpress_tokens=[5])),
    "gen_min_length": ("hf", _generation(min_length=30)),
    "gen_kind": ("hf", _generation(no_repeat_ngram_size="3")),
    "gen_beyond": ("hf", _generation(suppress_tokens=[300])),
    "gen_both": ("hf", _generation(forced_bos_token_id=5, suppress_tokens=[5])),
    "gen_end": ("hf", _json("generation_config.json", eos_token_id=300)),
    "gen_end_kind": ("hf", _json("generation_config.json", eos_token_id="</s>")),
    "gen_no_end": ("hf", _json("generation_config.json", decoder_start_token_id=0)),
    "gen_in_config": ("hf", _record(num_beams=4)),
    "gen_two_answers": (
        "hf",
        _both(_record(no_repeat_ngram_size=2), _generation(_from_model_config=True)),
    ),
    "tok_end": ("hf_pieces", _json("tokenizer_config.json", eos_token="<end>")),
    "tok_lower": ("hf_pieces", _json("tokenizer_config.json", do_lower_case=True)),
    "tok_twice": (
        "hf_pieces",
        _both(
            _json("added_tokens.json", **{"{": 2048}),
            _json("tokenizer_config.json", added_tokens_decoder={"2049": {"content": "{"}}),
        ),
    ),
    "tok_beyond": ("hf_pieces", _json("added_tokens.json", **{"{": 3000})),
    "tok_other_ids": (
        "hf_pieces",
        lambda folder: (
            shutil.copy(folder.parent / "other_ids.model", folder / "spiece.model") and None
        ),
    ),
}


def _spoil(folder: Path, pattern: str) -> None:
    for file in folder.glob(pattern):
        file.write_bytes(b"noise")


def _outputs(yard: Path) -> None:
    """Outputs of earlier commands, and what is none."""
    (yard / "old.jsonl").write_text('{"index": 0}\n')
    text = {"index": 0, "tokens": 1, "accepted": {"model": [1.0] * 4}, "inputs": [5], "output": [1]}
    (yard / "passes.jsonl").write_text(json.dumps(text | {"drafts": {}, "proposes": 1}) + "\n")
    (yard / "passes.jsonl.gin").write_text("SPLIT = 'train'\n# format of acceptance = 2\n")
    (yard / "first.jsonl").write_text('{"index": 0, "tokens": 1, "accepted": {"model": [1.0]}}\n')
    (yard / "first.jsonl.gin").write_text("# format of acceptance = 1\n")
    shutil.copy(RESULT, yard / "good.summary.json")
    (yard / "noise.summary.json").write_bytes(bytes(range(256)))
    (yard / "list.summary.json").write_text("[]")
    (yard / "speedup.summary.json").write_text('{"speedup": 1}')
    (yard / "alphas.summary.json").write_text('{"alphas": []}')
    (yard / "other").mkdir()
    (yard / "other" / "notes.txt").write_text("mine")
    (yard / "begun").mkdir()
    (yard / "begun" / "predictions.jsonl").write_text("")
