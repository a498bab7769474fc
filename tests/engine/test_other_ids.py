"""A checkpoint whose ids are SentencePiece's own, as MADLAD-400's are.

Id 0 is the unknown piece, texts end in 2, and the model alone says that 1 is padding.
"""

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


def test_the_command_line_says_which_ids_these_are(path, capsys):
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
