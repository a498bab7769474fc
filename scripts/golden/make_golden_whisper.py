"""Makes a golden Hugging Face checkpoint of a tiny Whisper in tests/golden/hf_whisper.

  pip install torch transformers safetensors
  python scripts/golden/make_golden_whisper.py

Its weights are random. `golden.npz` has what transformers makes of random features, of logits with
timestamps, and of a sound. With transformers 4 it only writes the record of that version,
`config_4.json`. tests/golden/README.md says what is in each.
"""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import (
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)
from transformers.generation.logits_process import (
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "golden" / "hf_whisper"
SEED = 1
END, START, EN, DE, TRANSLATE, TRANSCRIBE, NO_TIMESTAMPS, SIZE = 45, 46, 47, 48, 49, 50, 51, 61
MEL_BINS, POSITIONS, CONTEXT = 8, 12, 32
IDS = {"bos_token_id": END, "eos_token_id": END, "pad_token_id": END}
CONFIG = WhisperConfig(
    vocab_size=SIZE,
    num_mel_bins=MEL_BINS,
    d_model=16,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=20,
    decoder_ffn_dim=20,
    max_source_positions=POSITIONS,
    max_target_positions=CONTEXT,
    decoder_start_token_id=START,
    begin_suppress_tokens=None,
    **IDS,
)
GENERATION = GenerationConfig(
    **IDS,
    decoder_start_token_id=START,
    max_length=CONTEXT,
    suppress_tokens=[*range(0, 40, 5), START],
    begin_suppress_tokens=[6, 16, 41, END],
    is_multilingual=True,
    lang_to_id={"<|en|>": EN, "<|de|>": DE},
    task_to_id={"translate": TRANSLATE, "transcribe": TRANSCRIBE},
    no_timestamps_token_id=NO_TIMESTAMPS,
    max_initial_timestamp_index=3,
    return_timestamps=False,
)


def model() -> WhisperForConditionalGeneration:
    """Returns random weights under which every parameter matters to the logits."""
    torch.manual_seed(SEED)
    made = WhisperForConditionalGeneration(CONFIG).eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.3)
            elif "layer_norm" in name:
                parameter.uniform_(0.5, 2.0)
            elif "encoder.embed_positions" not in name:
                parameter.normal_(0, 0.4)
    made.generation_config = GENERATION
    return made


def run(made: WhisperForConditionalGeneration) -> dict[str, np.ndarray]:
    """Returns features of a batch of two, and the logits and the texts for them."""
    random = np.random.default_rng(SEED)
    features = random.normal(0, 1, [2, MEL_BINS, 2 * POSITIONS]).astype(np.float32)
    outputs = random.integers(0, SIZE, [2, CONTEXT]).astype(np.int32)
    given = torch.tensor(features)
    fed = np.concatenate([np.full([2, 1], START), outputs[:, :-1]], axis=1)
    with torch.no_grad():
        found = made(given, decoder_input_ids=torch.tensor(fed))
    texts, options = {}, {"max_length": CONTEXT, "do_sample": False, "num_beams": 1}
    options["return_dict_in_generate"] = True
    for name, settings in {
        "greedy": {"language": "en", "task": "transcribe"},
        "translated": {"language": "de", "task": "translate"},
    }.items():
        texts[name] = made.generate(given, **options, **settings)["sequences"].numpy()
    # With timestamps, Whisper's own `generate` goes on behind the last of them in another window.
    texts["timestamps"] = GenerationMixin.generate(
        made,
        given,
        decoder_input_ids=torch.tensor([[START, EN, TRANSCRIBE]] * 2),
        generation_config=GenerationConfig(**IDS, **options),
        logits_processor=LogitsProcessorList(
            [
                SuppressTokensAtBeginLogitsProcessor(GENERATION.begin_suppress_tokens, 3),
                SuppressTokensLogitsProcessor(GENERATION.suppress_tokens),
                WhisperTimeStampLogitsProcessor(GENERATION, begin_index=3),
            ]
        ),
    )["sequences"].numpy()
    for name, text in texts.items():
        print(name, text.tolist())
        texts[name] = text.astype(np.int32)
    logits = found.logits.numpy()
    print("largest logit", np.abs(logits).max())
    return {"features": features, "outputs": outputs, "logits": logits, **texts}


def stamped() -> dict[str, np.ndarray]:
    """Returns random texts behind a prefix of three tokens, and their processed logits."""
    random, rows, width = np.random.default_rng(SEED), 120, 12
    tokens = random.integers(0, SIZE, [rows, width])
    tokens[::2] = random.integers(NO_TIMESTAMPS - 3, SIZE, [rows, width])[::2]
    tokens[::5, 4:] = random.integers(0, END, [rows, width])[::5, 4:]
    lengths = 3 + np.arange(rows) % (width - 2)
    logits = random.normal(0, 3, [rows, SIZE]).astype(np.float32)
    process, found = WhisperTimeStampLogitsProcessor(GENERATION, begin_index=3), []
    for row, length in enumerate(lengths):
        text = torch.tensor(tokens[row, :length])[None]
        found.append(process(text, torch.tensor(logits[row])[None])[0].numpy())
    return {
        "stamped_tokens": tokens.astype(np.int32),
        "stamped_lengths": lengths.astype(np.int32),
        "stamped_logits": logits,
        "stamped_processed": np.stack(found),
    }


def heard() -> dict[str, np.ndarray]:
    """Returns 0.7 s of a rising tone with noise, and its features in a window of one second."""
    seconds = np.arange(11_200) / 16_000
    tone = 0.4 * np.sin(2 * np.pi * (200 + 2500 * seconds) * seconds)
    tone += 0.02 * np.random.default_rng(SEED).normal(size=len(seconds))
    sound = np.round(tone * 2**15).astype(np.int16)
    found = {"sound": sound}
    for bins in (80, 128):
        extractor = WhisperFeatureExtractor(feature_size=bins, chunk_length=1)
        features = extractor(sound / 2**15, sampling_rate=16_000, return_tensors="np")
        found[f"mel_{bins}"] = features["input_features"][0].astype(np.float32)
    return found


def main() -> None:
    if transformers.__version__.startswith("4."):
        with tempfile.TemporaryDirectory() as place:
            model().save_pretrained(place)
            shutil.copy(Path(place) / "config.json", FOLDER / "config_4.json")
        return
    kept = FOLDER / "config_4.json"
    record = kept.read_bytes() if kept.exists() else None
    shutil.rmtree(FOLDER, ignore_errors=True)
    model().save_pretrained(FOLDER)
    if record is not None:
        kept.write_bytes(record)
    made = WhisperForConditionalGeneration.from_pretrained(FOLDER).eval()
    np.savez_compressed(FOLDER / "golden.npz", **run(made), **stamped(), **heard())


if __name__ == "__main__":
    main()
