"""Times a Chronos of small's sizes next to its own package, interleaved in one process.

  pip install chronos-forecasting
  python scripts/peers/series.py --output_file=FILE
  python scripts/peers/compare.py --table FILE

Weights are random. Each of the series has 512 values, and gets 20 samples of 64 values, drawn at
temperature 1 from the 50 likeliest bins. The draft reads the target's encoder. It is the target's
first decoder layer, and always right (random_weights.py). README.md next to this file says how
engines take turns.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import flags

NEW, CONTEXT, SAMPLES, TOP_K = 64, 512, 20, 50
PEERS = ("chronos",)
BINS = {
    "tokenizer_class": "MeanScaleUniformBins",
    "tokenizer_kwargs": {"low_limit": -15.0, "high_limit": 15.0},
    "context_length": CONTEXT,
    "prediction_length": NEW,
    "n_tokens": 4096,
    "n_special_tokens": 2,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "use_eos_token": True,
    "model_type": "seq2seq",
    "num_samples": SAMPLES,
    "temperature": 1.0,
    "top_k": TOP_K,
    "top_p": 1.0,
}


def main() -> int:
    _compare(flags.parsed(__doc__, PEERS, ("stored", "int8_tokens"), gamma=7, texts=3, new=NEW))
    return 0


def _compare(args: argparse.Namespace) -> None:
    import engines
    import numpy as np
    import random_weights

    from specdec.models.t5 import T5Config, T5Target

    sizes = {"emb_dim": 512, "num_heads": 8, "head_dim": 64, "mlp_dim": 2048}
    layers = {"num_encoder_layers": 6, "num_decoder_layers": 6}
    told = {"mlp_activations": ("relu",), "logits_via_embedding": True}
    target = T5Target(T5Config(vocab_size=BINS["n_tokens"], **sizes, **layers, **told))
    folder = random_weights.checkpoint(args, "chronos_small", target, 1)
    record = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(record | {"chronos_config": BINS}))
    ready = _ours(target, folder, args)
    if "chronos" in args.peers:
        ready["chronos"] = engines.Chronos(folder, flags.THREADS, args.new)
    values = np.random.default_rng(0).standard_normal((args.texts, CONTEXT)).cumsum(axis=1)
    random_weights.timed(args, ready, dict(enumerate(values.tolist())))


def _ours(target: Any, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    from specdec import Plan, checkpoints
    from specdec.drafters import Autoregressive
    from specdec.engine import Engine, Settings
    from specdec.models.t5 import T5Draft, T5DraftConfig
    from specdec.sampling import Sampling
    from specdec.schedules import Fixed
    from specdec.verifiers import Block

    config, drawn = target.config, Sampling(1.0, top_k=TOP_K)
    shared = {"num_encoder_layers": 0, "encoded_dim": config.emb_dim}
    draft = T5Draft(T5DraftConfig.of(config, **shared, num_decoder_layers=1))
    first = folder.with_name("chronos_small_draft")
    if not first.exists():
        params = checkpoints.load(folder, config=config)
        own = draft.part_of({name: leaf for name, leaf in params.items() if name != "encoder"})
        checkpoints.save(first, own, config=draft.config)
    rules = Block(), Fixed(args.gamma), drawn, args.new
    plan = Plan(target, Autoregressive(draft, drawn), *rules, stop_ids=())
    weights = {"target": folder, "draft": first}
    roles = ("target", "draft") if args.weights == "int8_tokens" else ()
    settings = Settings(int8=roles, int8_tokens=bool(roles))
    engine = Engine.open(plan, weights, settings=settings, num_samples=SAMPLES)
    return {
        "alone": _Specdec(engine.alone(), args.new),
        "speculative": _Specdec(engine, args.new),
    }


class _Specdec:
    """The samples of a series, as `specdec decode` makes them."""

    def __init__(self, engine: Any, new: int):
        self._engine, self._new = engine.suited(samples=SAMPLES, together=SAMPLES), new

    def generate(self, values: list[float]) -> list[int]:
        from specdec import tasks

        lengths = {"inputs": CONTEXT + 1, "targets": self._new}
        pairs = [(json.dumps(values), None)]
        (batch,) = tasks.text_batches(pairs, self._engine.vocabulary, lengths, batch_size=1)
        found = self._engine.outputs(((batch, i) for i in range(SAMPLES)), seed=0)
        return [id for output, _ in found for id in output.tokens[0].tolist()]


if __name__ == "__main__":
    sys.exit(main())
