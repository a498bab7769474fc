"""Makes golden Hugging Face checkpoints of decoders and of T5Gemmas in tests/golden.

  pip install torch transformers safetensors
  python scripts/golden/make_golden_decoders.py

Tiny models with random weights, saved by transformers itself; its logits and greedy texts
are in golden.npz. With transformers 4 it only writes the records of that version, `config_4.json`.
tests/golden/README.md says what is in each.
"""

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import (
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
    T5GemmaConfig,
    T5GemmaForConditionalGeneration,
    T5GemmaModuleConfig,
)

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden"
OLD = transformers.__version__.startswith("4.")
SIZES = {"vocab_size": 61, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA = SIZES | {"intermediate_size": 20, "bos_token_id": 1, "eos_token_id": 2}
GROUPS = {"num_key_value_heads": 2}
OPT = SIZES | {"ffn_dim": 20, "max_position_embeddings": 64, "word_embed_proj_dim": 16}
GPT2 = {
    "vocab_size": 61,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 4,
    "n_inner": 20,
    "n_positions": 64,
    "bos_token_id": 2,
    "eos_token_id": 2,
}
PROMPTS, OUTPUTS = (7, 1, 26, 3), 18  # lengths
# Caps and windows are so small that they matter to the logits.
GEMMA = {
    **{"vocab_size": 61, "num_hidden_layers": 3, "head_dim": 4, "query_pre_attn_scalar": 4},
    **{"attn_logit_softcapping": 5.0, "final_logit_softcapping": 6.0, "sliding_window": 4},
}
DECODER = GEMMA | {"hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2}
ENCODER = GEMMA | {"hidden_size": 12, "num_attention_heads": 2, "num_key_value_heads": 2}


def t5gemma(encoder: dict, decoder: dict) -> T5GemmaConfig:
    """Returns the config of two stacks."""
    made = [T5GemmaModuleConfig(**stack, intermediate_size=20) for stack in (encoder, decoder)]
    return T5GemmaConfig(encoder=made[0], decoder=made[1], vocab_size=decoder["vocab_size"])


def t5gemma2(**fields):
    """Returns the config of a T5Gemma 2 with a tiny vision tower, None with transformers 4."""
    if OLD:
        return None
    from transformers import (
        SiglipVisionConfig,
        T5Gemma2Config,
        T5Gemma2DecoderConfig,
        T5Gemma2EncoderConfig,
        T5Gemma2TextConfig,
    )

    sizes = DECODER | {"intermediate_size": 20, "final_logit_softcapping": None} | fields
    sizes |= {"attn_logit_softcapping": None, "num_hidden_layers": 3}
    sizes |= {"layer_types": [f"{kind}_attention" for kind in ("sliding", "full", "sliding")]}
    tower = {"hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1}
    tower |= {"num_attention_heads": 1, "image_size": 4, "patch_size": 2}
    encoder = T5Gemma2EncoderConfig(
        text_config=T5Gemma2TextConfig(**sizes).to_dict(),
        vision_config=SiglipVisionConfig(**tower, vision_use_head=False).to_dict(),
        mm_tokens_per_image=4,
        eoi_token_index=59,
    )
    decoder = T5Gemma2DecoderConfig(**sizes).to_dict()
    return T5Gemma2Config(encoder=encoder.to_dict(), decoder=decoder, image_token_index=60)


def rotary(kind: str, **fields) -> dict:
    """Returns the fields of a LLaMA with a longer context."""
    scaling = {"rope_type": kind, **fields}
    if OLD:
        return {"rope_scaling": scaling}
    return {"rope_parameters": {"rope_theta": 10_000.0, **scaling}}


LLAMA3 = rotary(
    "llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)
# name -> seed, model, its config, and the dtype that it is saved in. Of these seeds' greedy texts
# some end, and they vary.
MODELS = {
    "hf_llama": (13, LlamaForCausalLM, LlamaConfig(**LLAMA), torch.float32),
    "hf_llama_groups": (
        28,
        LlamaForCausalLM,
        LlamaConfig(**LLAMA, **GROUPS, tie_word_embeddings=True),
        torch.float32,
    ),
    "hf_llama_linear": (
        3,
        LlamaForCausalLM,
        LlamaConfig(**LLAMA, **rotary("linear", factor=4.0)),
        torch.float32,
    ),
    "hf_llama3": (
        4,
        LlamaForCausalLM,
        LlamaConfig(**LLAMA | {"eos_token_id": [2, 60]}, **GROUPS, **LLAMA3),
        torch.bfloat16,
    ),
    "hf_opt": (12, OPTForCausalLM, OPTConfig(**OPT), torch.float16),
    "hf_opt_350m": (
        8,
        OPTForCausalLM,
        OPTConfig(**OPT | {"word_embed_proj_dim": 8}, do_layer_norm_before=False),
        torch.float32,
    ),
    "hf_gpt2": (11, GPT2LMHeadModel, GPT2Config(**GPT2), torch.float32),
    "hf_t5gemma": (
        5,
        T5GemmaForConditionalGeneration,
        t5gemma(DECODER, DECODER),
        torch.float32,
    ),
    "hf_t5gemma_unequal": (
        6,
        T5GemmaForConditionalGeneration,
        t5gemma(ENCODER, DECODER),
        torch.bfloat16,
    ),
}


if not OLD:
    from transformers import T5Gemma2ForConditionalGeneration

    ropes = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    MODELS |= {
        "hf_t5gemma2": (
            7,
            T5Gemma2ForConditionalGeneration,
            t5gemma2(rope_parameters=ropes),
            torch.float32,
        ),
        "hf_t5gemma2_window": (
            8,
            T5Gemma2ForConditionalGeneration,
            t5gemma2(sliding_window=5),
            torch.bfloat16,
        ),
    }


def model(seed: int, kind: type, config) -> PreTrainedModel:
    """Returns random weights under which every parameter matters to the logits."""
    torch.manual_seed(seed)
    made, gemma = kind(config).eval(), kind.__name__.startswith("T5Gemma")
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.3)
            elif "norm" in name or "ln_" in name:
                parameter.uniform_(0.5, 2.0)
                parameter -= float(gemma)  # T5Gemma adds 1
            else:  # T5Gemma multiplies rows of tables by sqrt(width)
                parameter.normal_(0, 0.1 if "embed" in name and gemma else 0.4)
    return made


def run(made: PreTrainedModel, seed: int) -> dict[str, np.ndarray]:
    """Returns prompts, outputs, and what transformers makes of them, one prompt at a time."""
    random, vocab_size = np.random.default_rng(seed), made.config.vocab_size
    encoder = made.config.is_encoder_decoder  # its outputs begin with id 2
    outputs = random.integers(3, vocab_size, [len(PROMPTS), OUTPUTS])
    prompts = np.full([len(PROMPTS), max(PROMPTS)], -1)
    logits, greedy = [], np.full([len(PROMPTS), OUTPUTS], -1)
    for row, length in enumerate(PROMPTS):
        prompt = prompts[row, :length] = random.integers(3, vocab_size, length)
        given = torch.tensor(prompt)[None]
        text = np.concatenate([[2] if encoder else prompt, outputs[row, :-1]])
        ids = torch.tensor(text)[None]
        with torch.no_grad():
            found = made(given, decoder_input_ids=ids) if encoder else made(ids)
            logits.append(found.logits[0, -OUTPUTS:].float().numpy())
            text = made.generate(
                given,
                attention_mask=torch.ones_like(given),
                max_new_tokens=OUTPUTS,
                do_sample=False,
                pad_token_id=0,
            )[0, 1 if encoder else length :]
        greedy[row, : len(text)] = text
    return {
        "prompts": prompts.astype(np.int32),
        "outputs": outputs.astype(np.int32),
        "logits": np.stack(logits),
        "greedy": greedy.astype(np.int32),
    }


def save(name: str, seed: int, kind: type, config, dtype: torch.dtype) -> None:
    made, folder = model(seed, kind, config).to(dtype), GOLDEN / name
    if OLD:
        with tempfile.TemporaryDirectory() as place:
            made.save_pretrained(place)
            shutil.copy(Path(place) / "config.json", folder / "config_4.json")
        return
    kept = folder / "config_4.json"
    record = kept.read_bytes() if kept.exists() else None
    shutil.rmtree(folder, ignore_errors=True)
    made.save_pretrained(folder)
    (folder / "generation_config.json").unlink()
    if record is not None:
        kept.write_bytes(record)
    # Run what was saved: its weights may have been rounded.
    golden = run(kind.from_pretrained(folder, dtype=torch.float32).eval(), seed)
    np.savez_compressed(folder / "golden.npz", **golden)
    print(name, float(np.abs(golden["logits"]).max()), golden["greedy"].tolist())


def texts(seed: int = 7) -> None:
    """Saves a T5Gemma next to the tokenizer of prompts/t5gemma, and the texts that it generates."""
    folder = GOLDEN / "prompts" / "t5gemma"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    stack = DECODER | {"vocab_size": len(tokenizer), "sliding_window": 64}
    made = model(seed, T5GemmaForConditionalGeneration, t5gemma(stack, stack))
    made.model.decoder.embed_tokens.weight.data[[1, 6]] *= 3  # so that texts end
    made.generation_config.eos_token_id = [1, 6]  # of those that are tuned on instructions
    made.save_pretrained(folder)
    found = []
    for text in ("The house is small.", "a", "Q: river A:", " Gr\u00f6\u00dfe \U0001f600"):
        given = tokenizer(text, return_tensors="pt")
        ids = made.generate(**given, max_new_tokens=12, do_sample=False)[0, 1:].tolist()
        shown = tokenizer.decode(ids, skip_special_tokens=True)
        found.append(
            {"input": text, "ids": given.input_ids[0].tolist(), "output": ids, "text": shown}
        )
    (folder / "generated.json").write_text(json.dumps(found, indent=1) + "\n")
    print("texts", [(len(one["output"]), one["text"]) for one in found])


def main() -> None:
    for name, given in MODELS.items():
        save(name, *given)
    if not OLD:
        texts()


if __name__ == "__main__":
    main()
