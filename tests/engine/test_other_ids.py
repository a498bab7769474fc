"""A checkpoint whose ids are SentencePiece's own, as MADLAD-400's are.

Id 0 is the unknown piece, texts end in 2, and the model alone says that 1 is padding.
"""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from support import tiny_t5

from specdec import Plan, checkpoints, cli, tasks
from specdec.checkpoints.vocabulary_fit import check_fit
from specdec.drafters import PromptLookup
from specdec.engine import Engine
from specdec.models.t5 import T5Target
from specdec.sampling import Greedy
from specdec.schedules import Fixed
from specdec.verifiers import GreedyMatch

DEMO = Path(__file__).resolve().parents[2] / "demo" / "vocabulary.model"
TARGET = T5Target(tiny_t5(2048, 8, pad_id=1, stop_ids=(2,)))
TEXT = "Drei Bäcker."


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A directory of Hugging Face with the demo's pieces, of which the first three are others."""
    from sentencepiece import sentencepiece_model_pb2

    folder = tmp_path_factory.mktemp("other_ids")
    model = sentencepiece_model_pb2.ModelProto.FromString(DEMO.read_bytes())
    first = model.pieces[:3]
    for piece, name, kind in zip(first, ("<unk>", "<s>", "</s>"), (2, 3, 3), strict=True):
        piece.piece, piece.type = name, kind
    (folder / "pieces.model").write_bytes(model.SerializeToString())
    vocabulary = checkpoints.Vocabulary(folder / "pieces.model")
    params = TARGET.init(jax.random.key(0))
    given = {"config": TARGET.config, "vocabulary": vocabulary, "format": "huggingface"}
    checkpoints.save(folder / "madlad", params, **given)
    return folder / "madlad"


@pytest.mark.ci
def test_the_engine_takes_padding_and_ends_from_the_checkpoint(path, tmp_path):
    assert cli.main(["convert", str(path), str(tmp_path / "own"), "--format=orbax"]) == 0
    for directory in (path, tmp_path / "own"):
        target = checkpoints.model_from(directory)
        plan = Plan(target, PromptLookup(), GreedyMatch(), Fixed(3), Greedy(), max_length=8)
        engine = Engine.open(plan, {"target": directory})
        assert (engine.plan.target.pad_id, engine.plan.stop_ids) == (1, (2,))
        (batch,) = tasks.text_batches(
            [(TEXT, None)], engine.vocabulary, {"inputs": 16}, batch_size=2, pad_id=target.pad_id
        )
        length = len(engine.vocabulary.encode(TEXT)) + 1
        assert batch.inputs[0, length - 1] == 2
        assert np.all(batch.inputs[0, length:] == 1) and np.all(batch.inputs[1] == 1)
        batch.inputs[0, 3] = 0
        output, _ = engine.decode(batch)
        alone, _ = engine.alone().decode(batch)
        np.testing.assert_array_equal(output.tokens, alone.tokens)
        assert output.length.tolist()[1] == 0


def test_the_command_line_decodes_such_texts(path, capsys):
    assert cli.main(["decode", f"--target={path}", f"--text={TEXT}", "--max_length=4"]) == 0
    assert cli.main(["decode", f"--target={path}", f"--text={TEXT}", "--dry_run"]) == 0
    assert "ids: padding 1, end 2, unknown 0 (spiece.model)" in capsys.readouterr().out


def test_a_model_that_pads_with_a_token_is_refused(path):
    vocabulary = tasks.for_texts(tasks.recorded_vocabulary(*checkpoints.vocabulary_from(path)))
    check_fit(vocabulary, TARGET, "target")
    for pad_id in (0, 2):
        other = T5Target(tiny_t5(2048, 8, pad_id=pad_id, stop_ids=(7,)))
        with pytest.raises(ValueError, match=f"none, 2 and 0, and the target pads with {pad_id}; "):
            check_fit(vocabulary, other, "target")
    with pytest.raises(ValueError, match="are 0, 1 and 2, and the target pads with 1; use"):
        check_fit(tasks.for_texts(tasks.SentencePiece(str(DEMO))), TARGET, "target")
    with pytest.raises(tasks.TaskError, match="has no id of padding; give the model's"):
        tasks.text_batches([], vocabulary, {"inputs": 4}, batch_size=1)


WORD, IDS = 319, np.arange(2048)  # "▁ein", and T5's ids
IDS[[0, 1, 2, WORD]] = 1, 2, WORD, 0  # another model's ids of padding, the end, unknown, the word
TRAIN = """
from __gin__ import dynamic_registration
from specdec import checkpoints

include 'train.gin'
include 'models/frozen_target.gin'
include 'objectives/align.gin'
include 'tasks/local.gin'

MODEL = @drafter/checkpoints.model_from()
drafter/checkpoints.model_from.path = %INITIAL_CHECKPOINT_PATH
TASK_FEATURE_LENGTHS = {'inputs': 8, 'targets': 8}
EVALUATION_SPLIT = 'train'
STEPS = 6
WARMUP = 1
BATCH_SIZE = 4
BUCKETS = 1
TOP = 8
"""


def like_t5(params):
    """Returns the same parameters for T5's ids."""
    table = params["token_embedder"]["embedding"][IDS]
    kernel = params["decoder"]["logits_dense"]["kernel"][:, IDS]
    decoder = params["decoder"] | {"logits_dense": {"kernel": kernel}}
    return params | {"token_embedder": {"embedding": table}, "decoder": decoder}


@pytest.fixture
def pieces(tmp_path):
    """The demo's pieces with other ids, of which 0 is a word's and none is declared as padding."""
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString(DEMO.read_bytes())
    ordered = [model.pieces[old] for old in np.argsort(IDS)]
    del model.pieces[:]
    model.pieces.extend(ordered)
    model.pieces[1].piece = "<s>"
    (tmp_path / "pieces.model").write_bytes(model.SerializeToString())
    return tmp_path / "pieces.model"


@pytest.mark.slow
def test_training_is_that_of_a_checkpoint_with_the_ids_of_t5(pieces, tmp_path):
    """No part of a run takes id 0 for padding: batches, stored distributions, evaluation."""
    words = tasks.for_texts(tasks.SentencePiece(str(pieces)))
    assert words.encode("ein Mann")[0] == 0 and tasks.special_ids(words)[:2] == (None, 2)
    texts = tmp_path / "texts.tsv"
    lines = ["ein Baum", "drei und ein Mann", "zwei", "ein", "ein ein Hund", "im Wald ein"]
    texts.write_text("".join(f"{line}\tein {line}\n" for line in lines))
    (tmp_path / "run.gin").write_text(TRAIN)
    logs = []
    for name, config, file, ids in (
        ("other", TARGET.config, pieces, lambda params: params),
        ("t5", tiny_t5(2048, 8, decoder_start_id=WORD), DEMO, like_t5),
    ):
        for seed, role in enumerate(("target", "drafter")):
            params = ids(TARGET.init(jax.random.key(seed)))
            given = {"config": config, "vocabulary": checkpoints.Vocabulary(file)}
            checkpoints.save(tmp_path / name / role, params, **given)
        bindings = {
            "TASK_NAME": f"ids_of_{name}",
            "TASK_FILES": {"train": str(texts)},
            "TARGET_CHECKPOINT_PATH": str(tmp_path / name / "target"),
            "INITIAL_CHECKPOINT_PATH": str(tmp_path / name / "drafter"),
        }
        flags = [f"--gin.{key}={value!r}" for key, value in bindings.items()]
        out = tmp_path / name / "run"
        flags += [f"--vocabulary={file}", f"--output_dir={out}"]
        assert cli.main(["train", f"--gin_file={tmp_path / 'run.gin'}", *flags]) == 0
        logs.append([json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()])
    assert len(logs[0]) == len(logs[1]) > 6
    for one, same in zip(*logs, strict=True):
        assert one == pytest.approx(same, rel=1e-4)
