"""A model with random weights, whose draft is always right, next to other engines.

The draft is the target's first decoder layers. The target's other layers are computed, but add
nothing. So the time with a draft is that of the calls, and other drafts take longer.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import flags
import jax
import numpy as np
import table
import turns

from specdec import Plan, checkpoints
from specdec.common.environment import environment
from specdec.decoding.program import DecodeProgram, batch_shapes
from specdec.models.contract.model import Model
from specdec.types import Params, PyTree


def checkpoint(
    args: argparse.Namespace, name: str, target: Model, layers: int, head: int | None = None
) -> Path:
    """Returns the folder of a target whose decoder adds nothing after its first layers.

    It is in Hugging Face's format, next to the output file, and made once.

    Args:
      args: the flags.
      name: the folder's name.
      target: the target.
      layers: the layers that add something.
      head: the number of ids whose logits are not 0, which come first; None for all.
    """
    work_dir = Path(args.output_file).absolute().parent / "checkpoints"
    work_dir.mkdir(parents=True, exist_ok=True)
    folder = work_dir / name
    if not folder.exists():
        params = _with_silent_layers(jax.device_get(target.init(jax.random.key(0))), layers)
        if head is not None:
            known = np.arange(target.vocab_size) < head
            if target.config.head_is_table:
                table = params["token_embedder"]["embedding"]
                params["token_embedder"] = {"embedding": np.where(known[:, None], table, 0)}
            else:
                logits = params["decoder"]["logits_dense"]
                kernel = np.where(known, logits["kernel"], 0)
                params["decoder"]["logits_dense"] = logits | {"kernel": kernel}
        checkpoints.save(folder, params, config=target.config, format="huggingface")
    return folder


def _with_silent_layers(params: Any, first: int) -> Any:
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


def programs(
    plan: Plan, stored: Mapping[str, PyTree], length: int, prefix: np.ndarray | None = None
) -> Iterator[tuple[str, Any, Params]]:
    """Yields the name, the program and the parameters of the target alone, and of the plan.

    Args:
      plan: the plan.
      stored: role -> parameters as in a checkpoint.
      length: tokens of an input.
      prefix: see `DecodeProgram`.
    """
    for mode, one in {"alone": plan.alone(), "speculative": plan}.items():
        one = one.laid_out(1)
        models = one.models().items()
        trees = {role: jax.device_put(model.from_stored(stored[role])) for role, model in models}
        owned, shapes = one.params(trees), batch_shapes(one.target, 1, length)
        yield mode, DecodeProgram(one, prefix=prefix).compile(owned, *shapes), owned
        target = one.target
        assert isinstance(target, Model)
        print(f"{mode}: {one}, target in {target.layout}", file=sys.stderr)


def timed(args: argparse.Namespace, ready: Mapping[str, Any], texts: Mapping[int, Any]) -> None:
    """Times the engines on each text in turns, writes lines, and prints the table."""
    about = {**vars(args), "output_file": None, "threads": flags.THREADS, **environment()}
    file = table.File(args.output_file, about)
    for engine in ready.values():
        engine.generate(next(iter(texts.values())))  # the first generation is slower, and not timed
    skip = file.resume(ready)
    for record in turns.measure(ready, texts, repeats=args.repeats, skip=skip, pause=args.pause):
        file.write(record)
    print(*table.lines(table.read(args.output_file)), sep="\n")
