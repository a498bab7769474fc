"""Makes tests/golden/beams.npz: the beams of transformers' `generate`, their scores and their
lengths, of 40 random texts for each setting and each of two golden models. Random models seldom end
a text, so a token that they often write is the stop id.

  pip install torch transformers safetensors
  python scripts/golden/make_golden_beams.py
"""

import collections
import json
from pathlib import Path

import numpy as np
import torch
from transformers import T5ForConditionalGeneration

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden"
MODELS = ("hf_v1_0", "hf_v1_1")
TEXTS, INPUT = 40, 12
SETTINGS = {
    "plain": {"num_beams": 4, "max_new_tokens": 20},
    "no_penalty": {"num_beams": 4, "max_new_tokens": 20, "length_penalty": 0.0},
    "short": {"num_beams": 4, "max_new_tokens": 20, "length_penalty": -1.0},
    "early": {"num_beams": 4, "max_new_tokens": 20, "early_stopping": True},
    "never": {"num_beams": 4, "max_new_tokens": 20, "early_stopping": "never"},
    "never_long": {
        "num_beams": 3,
        "max_new_tokens": 20,
        "early_stopping": "never",
        "length_penalty": 2.0,
    },
    "two_ends": {"num_beams": 4, "max_new_tokens": 20},
    "wide": {"num_beams": 8, "max_new_tokens": 12},
    "processors": {
        "num_beams": 4,
        "max_new_tokens": 20,
        "no_repeat_ngram_size": 2,
        "min_new_tokens": 4,
        "repetition_penalty": 1.2,
    },
    "prefix": {"num_beams": 4, "max_new_tokens": 12},
}
PREFIX = (0, 5, 9, 3)  # the start token and three more


def frequent(model: T5ForConditionalGeneration, inputs: torch.Tensor) -> list[int]:
    """Returns the tokens of greedy texts, the most frequent first."""
    rows = model.generate(input_ids=inputs, max_new_tokens=20, do_sample=False)[:, 1:]
    counts = collections.Counter(rows.flatten().tolist())
    return [token for token, _ in counts.most_common() if token > 1 and token not in PREFIX]


def main() -> None:
    found: dict[str, np.ndarray] = {"settings": np.array(json.dumps(SETTINGS))}
    found["prefix"] = np.array(PREFIX)
    for name in MODELS:
        model = T5ForConditionalGeneration.from_pretrained(GOLDEN / name).eval()
        model.generation_config.eos_token_id = 1
        random = np.random.default_rng(1)
        inputs = random.integers(2, model.config.vocab_size, [TEXTS, INPUT])
        inputs[:, -1] = 1
        found[f"{name}/inputs"] = inputs.astype(np.int32)
        often = frequent(model, torch.tensor(inputs))
        stops = {case: [often[4]] for case in SETTINGS} | {"plain": [1], "two_ends": often[3:5]}
        found[f"{name}/stops"] = np.array(json.dumps(stops))
        for case, given in SETTINGS.items():
            beams, longest = given["num_beams"], given["max_new_tokens"]
            more = {}
            if case == "prefix":
                more["decoder_input_ids"] = torch.tensor([PREFIX]).repeat(TEXTS, 1)
                longest += len(PREFIX) - 1
            made = model.generate(
                input_ids=torch.tensor(inputs),
                attention_mask=torch.ones_like(torch.tensor(inputs)),
                do_sample=False,
                num_return_sequences=beams,
                return_dict_in_generate=True,
                output_scores=True,
                eos_token_id=stops[case],
                **given,
                **more,
            )
            rows = made.sequences[:, 1:].numpy().reshape(TEXTS, beams, -1)
            rows = np.pad(rows, [(0, 0), (0, 0), (0, longest - rows.shape[2])])
            found[f"{name}/{case}"] = rows.astype(np.uint8)
            found[f"{name}/{case}/scores"] = made.sequences_scores.numpy().reshape(TEXTS, beams)
            print(name, case, np.mean(np.isin(rows, stops[case]).any(axis=2)), "end")
    np.savez_compressed(GOLDEN / "beams.npz", **found)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
