"""Times a LLaMA of 374 million parameters next to CTranslate2's, interleaved in one process.

  python scripts/peers/decoders.py --output_file=FILE [--weights=int8_tokens]
  python scripts/peers/compare.py --table FILE

Weights and prompts of 16 tokens are random, and outputs have 48 tokens. The draft is the target's
first two layers. The target's other layers are computed, but add nothing, so that every draft is
right: the time with a draft is that of the calls, and other drafts take longer. README.md next to
this file says how engines take turns.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

THREADS = 2
NEW, PROMPT = 48, 16  # tokens
DRAFT_LAYERS = 2
PEERS = ("ctranslate2_float32", "ctranslate2_int8")


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--output_file", required=True, metavar="FILE")
    kinds = "stored", "int8", "int8_tokens"
    parser.add_argument("--weights", default="int8_tokens", choices=kinds, help="of ours")
    parser.add_argument("--peers", nargs="+", default=PEERS, choices=PEERS, metavar="NAME")
    parser.add_argument("--gamma", type=int, default=7, metavar="N")
    parser.add_argument("--texts", type=int, default=6, metavar="N")
    parser.add_argument("--repeats", type=int, default=2, metavar="N")
    parser.add_argument("--pause", type=float, default=0.3, metavar="S")
    args = parser.parse_args()
    # As in compare.py: before anything that starts threads is imported.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
    _compare(args)
    return 0


def _compare(args: argparse.Namespace) -> None:
    import jax
    import numpy as np
    import table
    import turns

    from specdec import checkpoints
    from specdec.common.environment import environment

    target = _target()
    work_dir = Path(args.output_file).absolute().parent / "checkpoints"
    work_dir.mkdir(parents=True, exist_ok=True)
    folder = work_dir / "llama_374m"
    if not folder.exists():
        params = with_silent_layers(jax.device_get(target.init(jax.random.key(0))), DRAFT_LAYERS)
        checkpoints.save(folder, params, config=target.config, format="huggingface")
    about = {**vars(args), "output_file": None, "threads": THREADS, **environment()}
    file = table.File(args.output_file, about)
    ready = _ours(target, checkpoints.load(folder, config=target.config, dtype="float32"), args)
    ready |= _peers(folder, args.peers)
    drawn = np.random.default_rng(0).integers(3, target.config.vocab_size, (args.texts, PROMPT))
    texts = dict(enumerate(drawn.tolist()))
    for engine in ready.values():
        engine.generate(texts[0])  # the first generation is slower, and not timed
    skip = file.resume(ready)
    for record in turns.measure(ready, texts, repeats=args.repeats, skip=skip, pause=args.pause):
        file.write(record)
    print(*table.lines(table.read(args.output_file)), sep="\n")


def _target() -> Any:
    from specdec.models.llama import Llama, LlamaConfig

    sizes = {"emb_dim": 1024, "num_heads": 16, "num_kv_heads": 16, "head_dim": 64}
    return Llama(LlamaConfig(vocab_size=32000, mlp_dim=2816, num_decoder_layers=24, **sizes))


def with_silent_layers(params: Any, first: int) -> Any:
    """Returns parameters whose decoder layers after the first ones add zeros to the stream."""
    decoder = dict(params["decoder"])
    for i in range(first, sum(name.startswith("layers_") for name in decoder)):
        layer = dict(decoder[f"layers_{i}"])
        outputs = {"self_attention": "out", "encoder_decoder_attention": "out", "mlp": "wo"}
        for part in outputs.keys() & layer.keys():
            silent = {name: 0 * leaf for name, leaf in layer[part][outputs[part]].items()}
            layer[part] = layer[part] | {outputs[part]: silent}
        decoder[f"layers_{i}"] = layer
    return params | {"decoder": decoder}


def _ours(target: Any, params: Any, args: argparse.Namespace) -> dict[str, Any]:
    import engines
    import jax

    from specdec import Plan
    from specdec.decoding.program import DecodeProgram, batch_shapes
    from specdec.drafters import Autoregressive
    from specdec.sampling import Greedy
    from specdec.schedules import Fixed
    from specdec.verifiers import GreedyMatch

    target = dataclasses.replace(target, weights=args.weights)
    drafter = Autoregressive(target.first(DRAFT_LAYERS), Greedy())
    rules = GreedyMatch(), Fixed(args.gamma), Greedy(), NEW
    plan = Plan(target, drafter, *rules, stop_ids=())
    found = {}
    for mode, one in {"alone": plan.alone(), "speculative": plan}.items():
        one = one.laid_out(1)
        trees = {
            role: jax.device_put(model.from_stored(model.part_of(params)))
            for role, model in one.models().items()
        }
        owned, shapes = one.params(trees), batch_shapes(one.target, 1, PROMPT)
        found[mode] = engines.Specdec({PROMPT: DecodeProgram(one).compile(owned, *shapes)}, owned)
        print(f"{mode}: {one}, target in {one.target.layout} {one.target.orders}", file=sys.stderr)
    return found


def _peers(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    import engines

    work = engines.Work((PROMPT,), NEW, 2, 0, THREADS, "cpu")
    return {
        name: engines.CTranslate2Decoder(folder, name.removeprefix("ctranslate2_"), work)
        for name in names
    }


if __name__ == "__main__":
    sys.exit(main())
