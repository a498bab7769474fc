"""A tiny Whisper that reads 30 seconds at once, with random weights, and sounds of any length.

`scripts/golden/make_golden_long_sounds.py` makes transformers transcribe them, and tests compare.
Random numbers are those of NumPy's `RandomState`, which never change.
"""

from __future__ import annotations

import json
import wave
from pathlib import Path

import numpy as np

WIDTH, MEL_BINS, POSITIONS, CONTEXT = 16, 80, 1500, 40
END, START, EN, DE, TRANSLATE, TRANSCRIBE, NO_TIMESTAMPS = range(45, 52)
SIZE = NO_TIMESTAMPS + 1 + POSITIONS + 1
LETTERS = 'Ġabcdefghijklmnopqrstuvwxyz0123456789.,?!-:;"'
NAMES = ("endoftext", "startoftranscript", "en", "de", "translate", "transcribe", "notimestamps")
RATE = 16_000
SECONDS = (2, 31, 65, 200)
CONFIG = {
    "architectures": ["WhisperForConditionalGeneration"],
    "model_type": "whisper",
    "vocab_size": SIZE,
    "num_mel_bins": MEL_BINS,
    "d_model": WIDTH,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": WIDTH,
    "decoder_ffn_dim": WIDTH,
    "max_source_positions": POSITIONS,
    "max_target_positions": CONTEXT,
    "decoder_start_token_id": START,
    "bos_token_id": END,
    "eos_token_id": END,
    "pad_token_id": END,
}
GENERATION = {
    "bos_token_id": END,
    "eos_token_id": END,
    "pad_token_id": END,
    "decoder_start_token_id": START,
    "max_length": CONTEXT,
    "suppress_tokens": [3, 5, START, TRANSLATE, TRANSCRIBE],  # the tasks too, as in all releases
    "begin_suppress_tokens": [6, END],
    "is_multilingual": True,
    "lang_to_id": {"<|en|>": EN, "<|de|>": DE},
    "task_to_id": {"translate": TRANSLATE, "transcribe": TRANSCRIBE},
    "no_timestamps_token_id": NO_TIMESTAMPS,
    "max_initial_timestamp_index": 50,
    "return_timestamps": False,
}


def sinusoids() -> np.ndarray:
    """The encoder's positions, as in Whisper's own code."""
    half = WIDTH // 2
    angles = np.arange(POSITIONS)[:, None] * np.exp(-np.log(10_000) / (half - 1) * np.arange(half))
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def weights() -> dict[str, np.ndarray]:
    """Random parameters, by transformers' names."""
    random, found = np.random.RandomState(3), {}

    def add(name: str, *shape: int, scale: float = 0.4, bias: bool = True) -> None:
        found[f"model.{name}.weight"] = random.normal(0, scale, shape)
        if bias:
            found[f"model.{name}.bias"] = random.normal(0, 0.3, shape[:1])

    def norm(name: str) -> None:
        found[f"model.{name}.weight"] = random.uniform(0.5, 2, WIDTH)
        found[f"model.{name}.bias"] = random.normal(0, 0.3, WIDTH)

    add("encoder.conv1", WIDTH, MEL_BINS, 3)
    add("encoder.conv2", WIDTH, WIDTH, 3)
    found["model.encoder.embed_positions.weight"] = sinusoids()
    add("decoder.embed_tokens", SIZE, WIDTH, bias=False)
    add("decoder.embed_positions", CONTEXT, WIDTH, bias=False)
    for stack, kinds in {
        "encoder": ["self_attn"],
        "decoder": ["self_attn", "encoder_attn"],
    }.items():
        layer = f"{stack}.layers.0"
        for kind in kinds:
            for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                add(f"{layer}.{kind}.{part}", WIDTH, WIDTH, scale=0.6, bias=part != "k_proj")
            norm(f"{layer}.{kind}_layer_norm")
        add(f"{layer}.fc1", WIDTH, WIDTH)
        add(f"{layer}.fc2", WIDTH, WIDTH)
        norm(f"{layer}.final_layer_norm")
        norm(f"{stack}.layer_norm")
    # Of 1,501 timestamps none is likelier than the words, and together they often are.
    found["model.decoder.embed_tokens.weight"][NO_TIMESTAMPS + 1 :] *= 0.5
    return {name: array.astype(np.float32) for name, array in found.items()}


def safetensors(arrays: dict[str, np.ndarray]) -> bytes:
    """A file of float32 arrays: the length of a header in JSON, the header, and the numbers."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, array in arrays.items():
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join(
        [len(text).to_bytes(8, "little"), text, *(x.tobytes() for x in arrays.values())]
    )


def make_model(folder: Path, **settings) -> Path:
    """Writes the checkpoint with its tokenizer; `settings` are those of generation."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(safetensors(weights()))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "generation_config.json").write_text(json.dumps(GENERATION | settings))
    return folder


def make_tokenizer(folder: Path) -> None:
    """Writes a tokenizer like those of Whisper's releases."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    made = Tokenizer(models.BPE(vocab={x: i for i, x in enumerate(LETTERS)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([f"<|{name}|>" for name in NAMES])
    made.add_tokens([f"<|{0.02 * step:.2f}|>" for step in range(POSITIONS + 1)])
    made.save(str(folder / "tokenizer.json"))
    names = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), "<|endoftext|>")
    record = {"tokenizer_class": "WhisperTokenizer", **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(record))


def sound(seconds: int) -> np.ndarray:
    """Samples of tones that change every half second, as int16; the last one is cut short."""
    random, size = np.random.RandomState(seconds), seconds * RATE - 123
    tones = random.uniform(100, 3000, 2 * seconds)[np.arange(size) // (RATE // 2)]
    loud = random.uniform(0, 0.5, 2 * seconds)[np.arange(size) // (RATE // 2)]
    made = loud * np.sin(2 * np.pi * tones * np.arange(size) / RATE) + random.normal(0, 0.01, size)
    return np.round(made * 2**15).clip(-(2**15), 2**15 - 1).astype(np.int16)


def write_sound(file: Path, samples: np.ndarray, rate: int = RATE) -> Path:
    """Writes a WAV file of one channel."""
    with wave.open(str(file), "wb") as opened:
        opened.setnchannels(1)
        opened.setsampwidth(2)
        opened.setframerate(rate)
        opened.writeframes(samples.tobytes())
    return file
