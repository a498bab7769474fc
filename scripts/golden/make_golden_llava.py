"""Makes the golden LLaVA in tests/golden/hf_llava.

  pip install torch transformers safetensors pillow
  python scripts/golden/make_golden_llava.py

A tiny model with random weights, saved by transformers itself. Its logits and greedy texts, and the
pixels that its image processor makes of pictures, are in golden.npz. With transformers 4 it only
writes the record of that version, `config_4.json`. tests/golden/README.md says what is in it.
"""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
)

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "golden" / "hf_llava"
OLD = transformers.__version__.startswith("4.")
SEED, VOCAB, IMAGE, PAD, SIZE, PATCHES = 4, 61, 59, 60, 28, 4
TEXT = {
    **{"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "intermediate_size": 20, "bos_token_id": 1, "eos_token_id": 2},
}
VISION = {
    **{"hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 3},
    **{"num_attention_heads": 2, "image_size": SIZE, "patch_size": 14},
}
# Of each prompt: lengths of texts, with a picture between two of them.
PROMPTS = ((2, 5), (1, 3, 2), (6,), (0, 1), (7, 1))
OUTPUTS = 12


def model() -> LlavaForConditionalGeneration:
    """Returns random weights under which every parameter matters to the logits."""
    torch.manual_seed(SEED)
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**VISION),
        text_config=LlamaConfig(**TEXT),
        image_token_index=IMAGE,
        image_seq_length=PATCHES,
        pad_token_id=PAD,
    )
    made = LlavaForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.3)
            elif "norm" in name or "layrnorm" in name:
                parameter.uniform_(0.5, 2.0)
            else:
                parameter.normal_(0, 0.06 if "patch_embedding" in name else 0.4)
    return made


def run(made: LlavaForConditionalGeneration) -> dict[str, np.ndarray]:
    """Returns prompts, pictures, outputs, and what transformers makes of each prompt."""
    random = np.random.default_rng(SEED)
    most = max(map(len, PROMPTS)) - 1
    pixels = np.zeros([len(PROMPTS), most, 3, SIZE, SIZE], np.float32)
    rows, logits = [], []
    outputs = random.integers(3, IMAGE, [len(PROMPTS), OUTPUTS])
    greedy = np.full([len(PROMPTS), OUTPUTS], -1)
    for row, texts in enumerate(PROMPTS):
        count, prompt = len(texts) - 1, []
        pixels[row, :count] = random.normal(size=[count, 3, SIZE, SIZE])
        for place, length in enumerate(texts):
            prompt += [IMAGE] * PATCHES * (place > 0) + random.integers(3, IMAGE, length).tolist()
        rows.append(prompt)
        pictures = {"pixel_values": torch.tensor(pixels[row, :count])} if count else {}
        ids = torch.tensor([prompt + outputs[row, :-1].tolist()])
        given = torch.tensor([prompt])
        with torch.no_grad():
            logits.append(made(ids, **pictures).logits[0, -OUTPUTS:].numpy())
            settings = {"max_new_tokens": OUTPUTS, "do_sample": False, "pad_token_id": PAD}
            settings["attention_mask"] = torch.ones_like(given)
            text = made.generate(given, **pictures, **settings)[0, len(prompt) :]
        greedy[row, : len(text)] = text
    prompts = np.full([len(rows), max(map(len, rows))], PAD)
    for row, prompt in enumerate(rows):
        prompts[row, : len(prompt)] = prompt
    found = {"prompts": prompts, "outputs": outputs, "greedy": greedy}
    found = {name: array.astype(np.int32) for name, array in found.items()}
    return found | {"pixels": pixels, "logits": np.stack(logits)}


def pictures() -> dict[str, np.ndarray]:
    """Returns pictures as bytes, and their pixels by the image processor."""
    from PIL import Image
    from transformers import CLIPImageProcessorPil

    random, found = np.random.default_rng(SEED), {}
    for name, shape, size in (
        ("wide", (37, 51, 3), {"shortest_edge": SIZE}),
        ("high", (40, 23, 3), {"shortest_edge": SIZE}),
        ("small", (30, 45, 3), {"shortest_edge": 21}),
        ("stretched", (30, 45, 3), {"height": SIZE, "width": SIZE}),
        ("grey", (33, 30), {"shortest_edge": SIZE}),
    ):
        array = random.integers(0, 256, shape, np.uint8)
        crop = {"height": SIZE, "width": SIZE}
        processor = CLIPImageProcessorPil(size=size, crop_size=crop)
        if name == "wide":
            processor.save_pretrained(FOLDER)
        made = processor(Image.fromarray(array), return_tensors="np")["pixel_values"][0]
        found |= {f"{name}_bytes": array, f"{name}_pixels": np.asarray(made, np.float32)}
    return found


def main() -> None:
    made = model()
    if OLD:
        with tempfile.TemporaryDirectory() as place:
            made.save_pretrained(place)
            shutil.copy(Path(place) / "config.json", FOLDER / "config_4.json")
        return
    kept = FOLDER / "config_4.json"
    record = kept.read_bytes() if kept.exists() else None
    shutil.rmtree(FOLDER, ignore_errors=True)
    made.save_pretrained(FOLDER)
    (FOLDER / "generation_config.json").unlink()
    if record is not None:
        kept.write_bytes(record)
    golden = run(LlavaForConditionalGeneration.from_pretrained(FOLDER).eval())
    np.savez_compressed(FOLDER / "golden.npz", **golden, **pictures())
    print(float(np.abs(golden["logits"]).max()), golden["greedy"].tolist())


if __name__ == "__main__":
    main()
