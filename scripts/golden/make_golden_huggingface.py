"""Makes the golden Hugging Face checkpoints in tests/golden, with transformers itself.

  pip install torch transformers safetensors
  python scripts/golden/make_golden_huggingface.py

Tiny models with random weights, saved by `save_pretrained`; transformers' logits and greedy texts
are in golden.npz. tests/golden/README.md says what is in each.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import torch
from transformers import (
    ByT5Tokenizer,
    T5Config,
    T5ForConditionalGeneration,
    UMT5Config,
    UMT5ForConditionalGeneration,
)

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden"
# Heads are together narrower than the model, and 14 positions reach the last bucket.
SIZES = {
    "vocab_size": 61,
    "d_model": 16,
    "d_kv": 6,
    "d_ff": 20,
    "num_heads": 2,
    "num_layers": 2,
    "num_decoder_layers": 1,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 14,
    "decoder_start_token_id": 0,
}
GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
MADLAD = GATED | {"pad_token_id": 1, "eos_token_id": 2}  # where id 0 is the unknown piece
INPUTS, OUTPUTS = (17, 25, 9), 18  # lengths


def model(
    seed: int, own_head: bool, kind=(T5Config, T5ForConditionalGeneration), **fields
) -> T5ForConditionalGeneration:
    """Random weights under which every parameter matters to the logits."""
    torch.manual_seed(seed)
    config, network = kind
    made = network(config(**SIZES | {"eos_token_id": 1} | fields)).eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name.endswith("norm.weight"):
                parameter.uniform_(0.5, 2.0)
            elif "relative_attention_bias" in name:
                parameter.normal_()
        made.shared.weight *= made.config.d_model**-0.5
        if own_head:
            made.lm_head.weight = torch.nn.Parameter(torch.randn_like(made.lm_head.weight))
    return made


def run(made: T5ForConditionalGeneration, seed: int) -> dict[str, np.ndarray]:
    """Inputs, and what transformers makes of them; id 0 is in the texts if it is a token."""
    random, pad = np.random.default_rng(seed), made.config.pad_token_id
    ends = made.config.eos_token_id
    inputs = np.full([len(INPUTS), max(INPUTS)], pad, np.int32)
    for row, length in enumerate(INPUTS):
        inputs[row, : length - 1] = random.integers(2, made.config.vocab_size, length - 1)
        inputs[row, length - 1] = ends if isinstance(ends, int) else ends[0]
    decoder_inputs = random.integers(2, made.config.vocab_size, [len(INPUTS), OUTPUTS])
    decoder_inputs[:, 0] = 0
    if pad:
        inputs[:, 2] = decoder_inputs[:, 5] = 0
    encoder = {
        "input_ids": torch.tensor(inputs, dtype=torch.long),
        "attention_mask": torch.tensor(inputs != pad),
    }
    with torch.no_grad():
        logits = made(**encoder, decoder_input_ids=torch.tensor(decoder_inputs)).logits
        greedy = made.generate(**encoder, max_new_tokens=OUTPUTS, do_sample=False, num_beams=1)
    return {
        "encoder_input_tokens": inputs,
        "decoder_input_tokens": decoder_inputs.astype(np.int32),
        "logits": logits.numpy(),
        "greedy": greedy[:, 1:].numpy().astype(np.int32),
    }


def save(name: str, made: T5ForConditionalGeneration, seed: int, **options) -> None:
    folder = GOLDEN / name
    shutil.rmtree(folder, ignore_errors=True)
    made.save_pretrained(folder, **options)
    (folder / "generation_config.json").unlink()
    # Run what was saved: its weights may have been rounded.
    read = type(made).from_pretrained(folder, dtype=torch.float32).eval()
    golden = run(read, seed)
    np.savez_compressed(folder / "golden.npz", **golden)
    print(name, golden["greedy"].tolist())


def main() -> None:
    # Of these seeds' greedy texts some end, and they vary.
    save("hf_v1_0", model(25, own_head=False), 25)
    save("hf_v1_1", model(4, own_head=True, **GATED), 4)
    save("hf_v1_1_tied", model(32, own_head=False, **GATED), 32)
    save("hf_madlad", model(40, own_head=True, **MADLAD), 40)
    ends = MADLAD | {"eos_token_id": [2, 60]}
    save("hf_madlad_tied", model(32, own_head=False, **ends), 32)
    kind = UMT5Config, UMT5ForConditionalGeneration
    save("hf_umt5", model(7, own_head=True, kind=kind, **GATED), 7)
    byt5 = model(23, own_head=True, vocab_size=384, num_layers=3, **GATED)
    save("hf_byt5", byt5.to(torch.bfloat16), 23, max_shard_size="12KB")
    ByT5Tokenizer().save_pretrained(GOLDEN / "hf_byt5")
    (GOLDEN / "hf_byt5" / "added_tokens.json").unlink()
    # Without its three lists of the sentinels, which say nothing more.
    file = GOLDEN / "hf_byt5" / "tokenizer_config.json"
    record = json.loads(file.read_text())
    file.write_text(json.dumps({"tokenizer_class": record["tokenizer_class"]}) + "\n")


if __name__ == "__main__":
    main()
