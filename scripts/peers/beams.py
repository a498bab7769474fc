"""Beam search of the captions target, by Hugging Face on the same weights: its quality, for methods
that are compared with it.

  python scripts/peers/beams.py [--beams 1 4] [--texts 1000]

BLEU of the captions of the test split, of their own and against the target's greedy texts (those of
one beam). Scores are divided by length to the power 0.6. transformers cannot keep a cache for a T5
whose decoder is deeper than its encoder, so the encoder is grown to as many layers, which computes
the same. Lines go to docs/results/DEVICE/beams/. Needs ../shared/multi30k, from the root of a
checkout, and scripts/peers/requirements.txt.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from forecast_check import PAIRS, built
from remeasure import RESULTS, device_name

from specdec import checkpoints, tasks
from specdec.cli import run as runs
from specdec.models import families
from specdec.records import Lines
from specdec.tasks.metrics import bleu

BATCH, LENGTH_PENALTY = 32, 0.6


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--beams", nargs="+", type=int, default=(1, 4), metavar="N")
    parser.add_argument("--texts", type=int, default=1000, metavar="N")
    args = parser.parse_args()
    run = built([f"--gin_file={PAIRS['captions']}", "--gin.DRAFTER=None"], "test", args.texts)
    vocabulary = runs.vocabulary_of(run)
    inputs, references = [], []
    for batch in run.batches():
        references += list(batch.target_texts or ())
        inputs += [row[row > 0].tolist() for row in batch.inputs[: len(batch.input_texts)]]
    path = RESULTS / device_name() / "beams" / "lines.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines, greedy = Lines(path), None
    lines.replace(())
    with tempfile.TemporaryDirectory() as folder:
        model = loaded(run.checkpoint_path, Path(folder) / "target")
        for beams in sorted(args.beams):
            outputs = written(model, inputs, beams, run.plan.max_length)
            texts = [tasks.detokenize(vocabulary, ids) for ids in outputs]
            greedy = greedy or texts
            line: dict[str, Any] = {"beams": beams, "texts": len(texts)}
            line["length_penalty"] = LENGTH_PENALTY
            for name, against in (("bleu", references), ("own_bleu", greedy)):
                line[name] = bleu(against, texts)["bleu"]
            line["unchanged"] = sum(map(str.__eq__, texts, greedy)) / len(texts)
            lines.append(line)
            print(line, flush=True)


def loaded(checkpoint: str, folder: Path) -> Any:
    """transformers' model of the same parameters."""
    import transformers

    config: Any = checkpoints.config_from(checkpoint)
    growth = families.family_of(config).growth
    assert growth is not None, "it is a T5"
    deep = dataclasses.replace(config, num_encoder_layers=config.num_decoder_layers)
    params = checkpoints.load(checkpoint, config=config, dtype="float32")
    grown = growth.grow(params, config, deep, jax.random.key(0))
    checkpoints.save(folder, grown, config=deep, format="huggingface")
    return transformers.T5ForConditionalGeneration.from_pretrained(folder).eval()


def written(model: Any, inputs: list[list[int]], beams: int, longest: int) -> list[list[int]]:
    """The best output of each, up to its EOS."""
    import torch

    outputs = []
    for start in range(0, len(inputs), BATCH):
        rows = inputs[start : start + BATCH]
        width = max(map(len, rows))
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        with torch.inference_mode():
            found = model.generate(
                input_ids=ids,
                attention_mask=(ids > 0).long(),
                num_beams=beams,
                length_penalty=LENGTH_PENALTY,
                max_new_tokens=longest,
                do_sample=False,
                pad_token_id=0,
                eos_token_id=1,
            )
        outputs += [[i for i in row[1:] if i > 1] for row in found.tolist()]
    return outputs


if __name__ == "__main__":
    main()
