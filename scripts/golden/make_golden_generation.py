"""Makes tests/golden/generation: tiny checkpoints, and what transformers generates with each.

Run it once with each version of transformers, 4 and 5, which needs PyTorch and sentencepiece too:

    python scripts/golden/make_golden_generation.py tests/golden/generation

All checkpoints share random parameters and a SentencePiece model, which the first run writes. They
differ in their JSON files, which `cases_<version>.json` has in full, with ids in, ids out and text.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
import transformers  # pyright: ignore[reportMissingImports]
from safetensors.numpy import save_file  # pyright: ignore[reportMissingImports]
from sentencepiece import sentencepiece_model_pb2
from transformers import AddedToken, T5ForConditionalGeneration, T5Tokenizer  # pyright: ignore

VERSION = transformers.__version__.partition(".")[0]
LENGTH = 10  # new tokens at most
EXTRA_IDS = 4
WORDS = ("the", "cook", "bread", "reads", "a", "letter", "and", "eats", ".", "n't")
TEXTS = (
    "the cook reads a letter",
    "a cook{the bread }eats",
    "the<extra_id_1>cook and\nthe <sep> x",
)
CONFIG = {
    "architectures": ["T5ForConditionalGeneration"],
    "model_type": "t5",
    "is_encoder_decoder": True,
    "vocab_size": 64,
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 24,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 2,
    "feed_forward_proj": "gated-gelu",
    "tie_word_embeddings": False,
    "scale_decoder_outputs": False,
    "decoder_start_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
IDS = {"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}


def generation(seen: list[int]) -> dict[str, dict]:
    """{name of a checkpoint: its generation_config.json in addition to IDS}.

    seen: the ids that the first text has without settings, so that each setting changes something.
    """
    a, b, c, d, *_ = dict.fromkeys(seen)
    return {
        "plain": {},
        "several_ends": {"eos_token_id": [1, c, d]},
        "another_end": {"eos_token_id": d},
        "another_start": {"decoder_start_token_id": 5},
        "begin_as_start": {"decoder_start_token_id": None, "bos_token_id": 7},
        "suppressed": {"suppress_tokens": [a, c, 63]},
        "suppressed_at_begin": {"begin_suppress_tokens": [a, b]},
        "forced_begin": {"forced_bos_token_id": 9, "begin_suppress_tokens": [a, 30, 40]},
        "forced_end": {"forced_eos_token_id": 1},
        "forced_other_end": {"forced_eos_token_id": 12},
        "bad_words": {"bad_words_ids": [[c], [a, b], [1], [b, c, d]]},
        "no_repeats": {"no_repeat_ngram_size": 1},
        "no_repeated_pairs": {"no_repeat_ngram_size": 2},
        "penalty": {"repetition_penalty": 2.5},
        "min_length": {"min_length": 6, "eos_token_id": [1, b, c]},
        "min_new_tokens": {"min_new_tokens": 6, "eos_token_id": [1, b, c]},
        "all_at_once": {
            "eos_token_id": [1, 40],
            "decoder_start_token_id": 3,
            "repetition_penalty": 1.3,
            "no_repeat_ngram_size": 2,
            "bad_words_ids": [[a, b]],
            "min_length": 4,
            "forced_bos_token_id": 22,
            "suppress_tokens": [d],
            "begin_suppress_tokens": [a],
        },
        "no_effect": {"use_cache": True, "length_penalty": 2.0, "temperature": 0.7},
    }


# Checkpoints that must be refused; the first setting is to be named.
REFUSED = {
    "beams": {"num_beams": 3},
    "sampled": {"do_sample": True, "temperature": 0.7},
    "encoder_no_repeats": {"encoder_no_repeat_ngram_size": 2},
    "biased": {"sequence_bias": [[[17], -3.0]]},
    "decaying": {"exponential_decay_length_penalty": [3, 1.5]},
}
ADDED = {
    "added_tokens": [AddedToken(token, normalized=True) for token in ("{", "}", "\n", "<sep>")],
    "added_with_flags": [
        AddedToken("{", lstrip=True, normalized=False),
        AddedToken("}", rstrip=True, normalized=False),
        AddedToken("<sep>", single_word=True, normalized=False),
    ],
    "added_special": [AddedToken("<sep>", special=True), AddedToken("{", special=True)],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "model.safetensors").exists():
        (folder / "spiece.model").write_bytes(vocabulary())
        save_file(parameters(), folder / "model.safetensors", {"format": "pt"})
    cases = {}
    seen = case(folder, {})["texts"][0]["output"]
    for name, settings in generation(seen).items():
        cases[name] = case(folder, settings)
    for name, settings in REFUSED.items():
        cases[name] = case(folder, settings) | {"refused": next(iter(settings))}
    for name, tokens in ADDED.items():
        cases[name] = case(folder, {}, tokens)
    cases["in_config_json"] = case(folder, None, config={"no_repeat_ngram_size": 1})
    cases["cleaned_up"] = case(folder, {}, record={"clean_up_tokenization_spaces": True})
    if VERSION == "4":
        cases["not_legacy"] = case(folder, {}, ADDED["added_tokens"], record={"legacy": False})
    text = json.dumps({"transformers": transformers.__version__, "cases": cases}, indent=0)
    (folder / f"cases_{VERSION}.json").write_text(text + "\n")


def vocabulary() -> bytes:
    """A SentencePiece model with T5's ids: some words, and letters."""
    model = sentencepiece_model_pb2.ModelProto()
    kinds = type(model).SentencePiece  # pyright: ignore[reportAttributeAccessIssue]
    model.pieces.add(piece="<pad>", score=0, type=kinds.CONTROL)
    model.pieces.add(piece="</s>", score=0, type=kinds.CONTROL)
    model.pieces.add(piece="<unk>", score=0, type=kinds.UNKNOWN)
    for place, word in enumerate(
        (*(f"▁{word}" for word in WORDS), "▁", *"abcdefghiklmnoprstuwy.'")
    ):
        model.pieces.add(piece=word, score=-1.0 - place / 10)
    model.trainer_spec.model_type = 1  # Unigram
    model.trainer_spec.pad_id, model.trainer_spec.eos_id, model.trainer_spec.unk_id = 0, 1, 2
    model.trainer_spec.bos_id = -1
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = True
    model.normalizer_spec.remove_extra_whitespaces = True
    model.normalizer_spec.escape_whitespaces = True
    return model.SerializeToString()


def parameters(seed: int = 23) -> dict[str, np.ndarray]:
    """Random ones, with logits far enough apart that outputs vary."""
    draws = np.random.default_rng(seed)
    model = T5ForConditionalGeneration(transformers.T5Config(**CONFIG))
    found = {}
    for name, tensor in model.state_dict().items():
        array = draws.normal(0, 1, tensor.shape).astype(np.float32)
        if name.endswith("embed_tokens.weight"):
            continue
        if tensor.ndim == 1:
            array = np.ones_like(array)
        elif "relative" in name:
            array *= 4
        elif name != "shared.weight":
            array *= (3 if name == "lm_head.weight" else 5) * tensor.shape[-1] ** -0.5
        found[name] = array
    return found


def case(folder, settings, tokens=(), config=None, record=None) -> dict:
    """A checkpoint's JSON files, and what transformers makes of texts with it."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for file in ("spiece.model", "model.safetensors"):
            shutil.copy(folder / file, directory)
        write(directory / "config.json", CONFIG | (config or {}))
        if settings is not None:
            given = IDS | settings
            given = {key: value for key, value in given.items() if value is not None}
            write(directory / "generation_config.json", given)
        tokenizer = T5Tokenizer.from_pretrained(directory, extra_ids=EXTRA_IDS, **(record or {}))
        tokenizer.add_tokens(list(tokens))
        tokenizer.save_pretrained(directory)
        if VERSION == "5":
            (directory / "spiece.model").unlink()
        tokenizer = T5Tokenizer.from_pretrained(directory)
        files = {
            file.name: json.loads(file.read_text()) for file in sorted(directory.glob("*.json"))
        }
        model = T5ForConditionalGeneration.from_pretrained(directory).eval()
        return {"files": files, "texts": [row(model, tokenizer, text) for text in TEXTS]}


def row(model, tokenizer, text: str) -> dict:
    """Ids in, ids out and text out; special tokens are left out of the text."""
    ids = tokenizer(text).input_ids
    torch.manual_seed(0)
    with torch.no_grad():
        (output,) = model.generate(torch.tensor([ids]), max_new_tokens=LENGTH).tolist()
    special = set(tokenizer.all_special_ids)
    shown = [id for id in output[1:] if id not in special and id < len(tokenizer)]
    return {"text": text, "inputs": ids, "output": output[1:], "shown": shown,
            "shown_text": tokenizer.decode(shown), "start": output[0]}  # fmt: skip


def write(file: Path, record: dict) -> None:
    file.write_text(json.dumps(record))


if __name__ == "__main__":
    main()
