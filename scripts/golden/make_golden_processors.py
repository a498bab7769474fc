"""Makes tests/golden/processors.npz: what transformers' `generate` writes greedily with its own
logits processors, 200 random texts for each setting and each of two golden models.

It also makes prompt_processors.npz: the same of a random decoder-only model, with the logits that
each token was chosen from.

  pip install torch transformers safetensors
  python scripts/golden/make_golden_processors.py
"""

import collections
import json
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, T5ForConditionalGeneration

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden"
MODELS = ("hf_v1_0", "hf_v1_1")
TEXTS, LONGEST, INPUT = 200, 20, 12


def settings(plain: list[list[int]]) -> dict[str, dict]:
    """By name, what `generate` is given. The words are frequent ones of plain outputs."""

    def frequent(size: int, without: tuple[int, ...] = ()) -> list[int]:
        found = collections.Counter(
            words
            for row in plain
            for words in zip(*(row[i:] for i in range(size)), strict=False)
            if not {0, 1, *without} & set(words) and len(set(words)) == size
        )
        return list(found.most_common(1)[0][0])

    first = collections.Counter(row[0] for row in plain).most_common(1)[0][0]
    one = frequent(1)
    words = [one, frequent(2, tuple(one)), frequent(3, tuple(one))]
    made = {
        "repetition_penalty": {"repetition_penalty": 1.3},
        "no_repeat_1": {"no_repeat_ngram_size": 1},
        "no_repeat_2": {"no_repeat_ngram_size": 2},
        "no_repeat_3": {"no_repeat_ngram_size": 3},
        "no_repeat_5": {"no_repeat_ngram_size": 5},
        "bad_words": {"bad_words_ids": words},
        "min_length": {"min_new_tokens": 9},
        "forced_bos": {"forced_bos_token_id": one[0]},
        "forced_eos": {"forced_eos_token_id": 1},
        "suppress": {"suppress_tokens": words[1]},  # of which "all" has one, so that words are left
        "begin_suppress": {"begin_suppress_tokens": [first]},
    }
    made["all"] = {k: v for name in made if name != "no_repeat_1" for k, v in made[name].items()}
    made["all"] |= {"no_repeat_ngram_size": 2, "suppress_tokens": [words[2][-1]]}
    made["all"]["forced_bos_token_id"] = next(i for i in range(2, 9) if i != words[2][-1])
    return made


def outputs(model: T5ForConditionalGeneration, inputs: torch.Tensor, **given) -> np.ndarray:
    """[TEXTS, LONGEST] without the start token, 0 behind the end."""
    rows = model.generate(
        input_ids=inputs,
        attention_mask=inputs != 0,
        max_new_tokens=LONGEST,
        do_sample=False,
        num_beams=1,
        **given,
    )[:, 1:].numpy()
    return np.pad(rows, [(0, 0), (0, LONGEST - rows.shape[1])]).astype(np.uint8)


def of_prompts() -> dict[str, np.ndarray]:
    """Returns prompts of 2 to 9 tokens, padded with 0, and what a tiny LLaMA writes after them."""
    torch.manual_seed(28)  # half of the texts end, and they have many different tokens
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    ids = {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}
    config = LlamaConfig(vocab_size=20, num_hidden_layers=2, initializer_range=1.0, **sizes, **ids)
    model = LlamaForCausalLM(config).eval()
    random = np.random.default_rng(0)
    prompts = [random.integers(2, 20, 2 + row) for row in range(8)]

    def written(**given) -> tuple[np.ndarray, np.ndarray]:
        tokens, logits = np.full([8, 10], -1, np.int8), np.zeros([8, 10, 20], np.float32)
        for row, prompt in enumerate(prompts):
            found = model.generate(
                input_ids=torch.tensor(prompt[None]),
                max_new_tokens=10,
                do_sample=False,
                return_dict_in_generate=True,
                output_logits=True,
                **given,
            )
            new = found.sequences[0, len(prompt) :].numpy()
            tokens[row, : len(new)] = new
            logits[row, : len(new)] = torch.cat(found.logits).numpy()
        return tokens, logits

    plain, _ = written()
    # Sequences that begin in a prompt or end in its first token, so that it decides about them.
    words = [[int(prompt[-1]), int(row[0])] for prompt, row in zip(prompts, plain, strict=True)]
    cases: dict[str, dict] = {
        "repetition_penalty": {"repetition_penalty": 1.7},
        "no_repeat_1": {"no_repeat_ngram_size": 1},
        "no_repeat_2": {"no_repeat_ngram_size": 2},
        "no_repeat_3": {"no_repeat_ngram_size": 3},
        "bad_words": {"bad_words_ids": words},
        "min_length": {"min_new_tokens": 6},
        "forced_eos": {"forced_eos_token_id": 1},
        "begin_suppress": {"begin_suppress_tokens": sorted({int(row[0]) for row in plain})},
    }
    found = {"settings": np.array(json.dumps(cases)), "plain": plain}
    found["prompts"] = np.array([np.pad(prompt, (0, 9 - len(prompt))) for prompt in prompts], "u1")
    for case, given in cases.items():
        found[f"{case}/ids"], found[f"{case}/logits"] = written(**given)
        print(case, given, np.any(found[f"{case}/ids"] != plain, axis=1).sum(), "rows differ")
    return found


def main() -> None:
    np.savez_compressed(GOLDEN / "prompt_processors.npz", **of_prompts())  # type: ignore[arg-type]
    found: dict[str, np.ndarray] = {}
    given: dict[str, dict] = {}
    for name in MODELS:
        model = T5ForConditionalGeneration.from_pretrained(GOLDEN / name).eval()
        model.generation_config.eos_token_id = 1
        random = np.random.default_rng(0)
        inputs = random.integers(2, model.config.vocab_size, [TEXTS, INPUT])
        inputs[:, -1] = 1
        found[f"{name}/inputs"] = inputs.astype(np.uint8)
        plain = outputs(model, torch.tensor(inputs))
        given[name] = settings(plain.tolist())
        for case, kwargs in given[name].items():
            rows = found[f"{name}/{case}"] = outputs(model, torch.tensor(inputs), **kwargs)
            print(name, case, kwargs, np.any(rows != plain, axis=1).sum(), "rows differ")
    found["settings"] = np.array(json.dumps(given))
    np.savez_compressed(GOLDEN / "processors.npz", **found)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
