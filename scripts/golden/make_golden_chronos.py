"""Makes a golden Chronos checkpoint in tests/golden.

  pip install torch chronos-forecasting
  python scripts/golden/make_golden_chronos.py

A tiny model with random weights, saved by transformers with the config of Chronos. golden.npz has
what the package makes of ragged contexts, with missing values, of zeros alone, of nothing, and
longer than the model's: ids, scales, logits of the left-padded rows, greedy ids, sampled ids, and
the quantiles of these samples. tests/golden/README.md says what is in it.
"""

from pathlib import Path

import numpy as np
import torch
from chronos import ChronosPipeline
from chronos.utils import left_pad_and_stack_1D
from transformers import T5Config, T5ForConditionalGeneration

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "golden" / "hf_chronos"
CONTEXT, PREDICTION, BINS = 20, 8, 96
CHRONOS = {
    "tokenizer_class": "MeanScaleUniformBins",
    "tokenizer_kwargs": {"low_limit": -15.0, "high_limit": 15.0},
    "context_length": CONTEXT,
    "prediction_length": PREDICTION,
    "n_tokens": BINS,
    "n_special_tokens": 2,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "use_eos_token": True,
    "model_type": "seq2seq",
    "num_samples": 20,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
}


def contexts() -> list[np.ndarray]:
    """Returns series of several kinds, float64."""
    random, nan = np.random.default_rng(46), float("nan")
    walk = random.normal(size=27).cumsum()  # longer than a context
    gaps = random.normal(3, 2, size=14)
    gaps[[0, 1, 5, 6, 13]] = nan
    large = 1e4 * np.sin(np.arange(9) / 2)
    spike = np.array([1e-3] * 16 + [5.0])  # beyond the last bin
    return [walk, gaps, np.zeros(6), large, spike, np.array([nan, nan, nan]), np.array([-2.5])]


def main() -> None:
    torch.manual_seed(9)  # of whose greedy ids one would be EOS
    config = T5Config(
        vocab_size=BINS,
        d_model=16,
        d_kv=4,
        d_ff=24,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=4,
        feed_forward_proj="relu",
        tie_word_embeddings=True,
        decoder_start_token_id=0,
        dropout_rate=0.0,
        chronos_config=CHRONOS,
    )
    model = T5ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 2.0)
            else:
                parameter.normal_(0, 0.7 if name == "shared.weight" else 0.4)
    model.save_pretrained(FOLDER)
    (FOLDER / "generation_config.json").unlink()
    pipeline = ChronosPipeline.from_pretrained(FOLDER)
    tokenizer, inner = pipeline.tokenizer, pipeline.model
    series = contexts()
    stacked = left_pad_and_stack_1D([torch.tensor(values) for values in series])
    ids, mask, scale = tokenizer.context_input_transform(stacked)
    torch.manual_seed(1)
    samples = inner(ids, mask, PREDICTION, 20, 1.0, 50, 1.0)
    greedy = inner(ids, mask, PREDICTION, 1, 1.0, 1, 1.0)[:, 0]
    labels, _ = tokenizer.label_input_transform(
        torch.tensor(np.linspace(-2, 40, PREDICTION)).repeat(len(series), 1), scale
    )
    fed = torch.cat([torch.zeros(len(series), 1, dtype=torch.long), labels[:, :-1]], dim=1)
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask, decoder_input_ids=fed).logits
    values = tokenizer.output_transform(samples, scale)
    levels = torch.arange(0.1, 0.95, 0.1, dtype=values.dtype)
    quantiles = torch.quantile(values.swapaxes(1, 2), q=levels, dim=-1).permute(1, 2, 0)
    length = max(map(len, series))
    padded = np.full([len(series), length], np.nan)
    for row, one in zip(padded, series, strict=True):
        row[: len(one)] = one
    np.savez_compressed(
        FOLDER / "golden.npz",
        series=padded,
        lengths=[len(one) for one in series],
        ids=ids.numpy().astype(np.int32),
        scales=scale.numpy(),
        labels=labels.numpy().astype(np.int32),
        fed=fed.numpy().astype(np.int32),
        logits=logits.numpy(),
        greedy=greedy.numpy().astype(np.int32),
        samples=samples.numpy().astype(np.int32),
        values=values.numpy(),
        quantiles=quantiles.numpy(),
        centers=tokenizer.centers.numpy(),
        boundaries=tokenizer.boundaries.numpy(),
    )


if __name__ == "__main__":
    main()
