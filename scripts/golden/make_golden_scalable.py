"""Makes tests/golden/scalable with T5X's scalable_t5: its network, its initial values, its saver.

python scripts/golden/make_golden_scalable.py
"""

import json
import shutil
from pathlib import Path

import flax
import jax
import numpy as np
from t5x import checkpoints, partitioning, train_state
from t5x.examples.scalable_t5 import network

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden" / "scalable"
SIZES = {
    "vocab_size": 64,
    "emb_dim": 16,
    "num_heads": 4,
    "head_dim": 6,
    "mlp_dim": 24,
    "num_encoder_layers": 2,
    "num_decoder_layers": 3,
    "mlp_activations": ["gelu", "linear"],
}


def main() -> None:
    draws = np.random.default_rng(0)
    tokens = [draws.integers(1, SIZES["vocab_size"], shape) for shape in ((2, 20), (2, 30))]
    inputs, targets = (array.astype(np.int32) for array in tokens)
    inputs[1, 12:] = 0
    targets[:, 0] = 0
    model = network.Transformer(network.T5Config(**SIZES, scan_layers=True, dropout_rate=0.0))
    call = (inputs, targets, np.ones_like(targets))  # all targets count
    variables = flax.core.unfreeze(model.init(jax.random.key(0), *call, enable_dropout=False))
    # Embeddings of a variance of 1 make logits of a hundred.
    variables["params"]["token_embedder"]["embedding"] *= 0.25
    logits = model.apply({"params": variables["params"]}, *call, enable_dropout=False)

    shutil.rmtree(GOLDEN, ignore_errors=True)
    state = train_state.InferenceState.create(variables)
    partitioner = partitioning.PjitPartitioner(num_partitions=1)
    checkpoints.Checkpointer(state, partitioner, str(GOLDEN / "t5x_native")).save(state)
    arrays = {"encoder_input_tokens": inputs, "decoder_input_tokens": targets, "logits": logits}
    np.savez_compressed(GOLDEN / "golden.npz", **arrays)
    config = SIZES | {"relative_bias_per_layer": True}
    (GOLDEN / "config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    main()
