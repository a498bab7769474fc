"""Times a model of MADLAD-400's widths next to CTranslate2's and Hugging Face's, in one process.

  python scripts/peers/translators.py --output_file=FILE [--weights=int8_tokens]
  python scripts/peers/compare.py --table FILE

It has MADLAD's widths and 256,000 ids, and 4 + 4 layers in place of 32 + 32. Weights and inputs of
32 tokens are random, and outputs have 40 tokens. The draft reads the target's encoder. It is the
target's first decoder layer with a head of 8,192 ids, as `specdec distill` makes it, and always
right: the target's head is zero for the other ids (random_weights.py). README.md next to this file
says how engines take turns.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

import flags

NEW, INPUT = 40, 32  # tokens
PAD, END = 1, 2
HEAD = 8192  # ids that the draft has
WEIGHTS = "stored", "int8_tokens"
PEERS = ("huggingface", "ctranslate2_float32", "ctranslate2_int8")


def main() -> int:
    _compare(flags.parsed(__doc__, PEERS, WEIGHTS, gamma=7, texts=4, new=NEW))
    return 0


def _compare(args: argparse.Namespace) -> None:
    import engines
    import numpy as np
    import random_weights

    from specdec.models.t5 import T5Config, T5Target

    sizes = {"vocab_size": 256000, "emb_dim": 1024, "num_heads": 16, "head_dim": 128}
    layers = {"mlp_dim": 8192, "num_encoder_layers": 4, "num_decoder_layers": 4}
    target = T5Target(T5Config(**sizes, **layers, pad_id=PAD, stop_ids=(END,)))
    folder = random_weights.checkpoint(args, "madlad_8_layers", target, 1, HEAD)
    ready = _ours(dataclasses.replace(target, weights=args.weights), folder, args)
    work = engines.Work((INPUT,), args.new, END, 0, flags.THREADS, "cpu")
    for name in args.peers:
        kind = name.removeprefix("ctranslate2_")
        if kind == name:
            ready[name] = engines.huggingface_t5(folder, work)
        else:
            ready[name] = engines.CTranslate2(folder, kind, work, least=args.new)
    drawn = np.random.default_rng(0).integers(3, sizes["vocab_size"], (args.texts, INPUT))
    random_weights.timed(args, ready, dict(enumerate(drawn.tolist())))


def _ours(target: Any, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    import engines
    import random_weights

    from specdec import Plan, checkpoints
    from specdec.drafters import Autoregressive
    from specdec.models.t5 import T5Draft, T5DraftConfig
    from specdec.sampling import Greedy
    from specdec.schedules import Fixed
    from specdec.verifiers import GreedyMatch

    config = target.config
    shared = {"num_encoder_layers": 0, "encoded_dim": config.emb_dim}
    first = T5DraftConfig.of(config, **shared, num_decoder_layers=1, head_ids=tuple(range(HEAD)))
    draft = T5Draft(first, weights=args.weights)
    rules = GreedyMatch(), Fixed(args.gamma), Greedy(), args.new
    plan = Plan(target, Autoregressive(draft, Greedy()), *rules, stop_ids=())
    params = checkpoints.load(folder, config=config, dtype="float32")
    without = draft.part_of({name: leaf for name, leaf in params.items() if name != "encoder"})
    head = {"kernel": params["decoder"]["logits_dense"]["kernel"][:, :HEAD]}
    stored = {
        "target": params,
        "draft": without | {"decoder": without["decoder"] | {"logits_dense": head}},
    }
    return {
        mode: engines.Specdec({INPUT: program}, owned)
        for mode, program, owned in random_weights.programs(plan, stored, INPUT)
    }


if __name__ == "__main__":
    sys.exit(main())
