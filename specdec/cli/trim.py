"""`specdec trim`: makes a drafter's checkpoint from some layers of its target's."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from specdec import checkpoints, tasks
from specdec.checkpoints.model_card import ModelCard
from specdec.cli.output import model_line, settle_paths
from specdec.common.values import UsageError, one_line
from specdec.models import families
from specdec.models.contract.family import Config
from specdec.models.sizes import kept_parts
from specdec.models.sizes.kept_parts import Trim, most_frequent

_WHICH = "first:N, last:N, spread:N or numbers from 0 on, as in 0,3"


def command(args: argparse.Namespace) -> None:
    settle_paths(args)
    if (args.head_size is None) != (args.predictions is None):
        flag, other = ("head_size", "predictions")[:: 1 if args.predictions is None else -1]
        raise UsageError(f"--{flag} is {getattr(args, flag)} without --{other}; give both")
    text = checkpoints.text_model_from(args.input, needed=False)
    output = checkpoints.check_output(args.output, "orbax", text.vocabulary)
    model = checkpoints.model_from(args.input)
    counts = Counter() if args.predictions is None else tasks.token_counts(args.predictions)
    with one_line():
        trimming = families.trimming_of(model.config)
        if not trimming.has_encoder and (args.shared_encoder or args.encoder_layers):
            asked = "shared_encoder" if args.shared_encoder else "encoder_layers"
            raise UsageError(f"--{asked} is about an encoder, and the model has none; leave it out")
        trim = _trim(args, model.config, counts)
        to = families.model_of(families.resized(model.config, trim))
    params = checkpoints.load(args.input, config=model.config)
    ours = families.resize(params, model.config, trim)
    checkpoints.save(output, ours, config=to.config, **text.kept())
    ModelCard(
        output.name,
        f"A part of another checkpoint, unchanged to the bit: {model_line(ours, to)}. It drafts "
        "for that model in speculative decoding, and drafts better after training.",
        families.family_of(to.config).name,
        {"checkpoint": args.input, "texts of the target": args.predictions},
        args.command_line,
    ).write(output)
    print(f"read {args.input}: {model_line(params, model)}")
    print(f"wrote {output}: {model_line(ours, to)}")
    if trim.head_ids is not None:
        share = sum(counts[i] for i in trim.head_ids) / counts.total()
        print(
            f"its head has {len(trim.head_ids):,} of {model.vocab_size:,} ids, {share:.2%} of the "
            f"tokens in {args.predictions}"
        )


def _trim(args: argparse.Namespace, config: Config, counts: Counter[int]) -> Trim:
    parts: dict[str, Any] = {}
    for stack in ("decoder", "encoder"):
        if (which := getattr(args, f"{stack}_layers")) is not None:
            there = getattr(config, f"num_{stack}_layers")
            parts[f"{stack}_layers"] = kept_parts.layers(f"--{stack}_layers", which, there)
    if args.shared_encoder:
        parts["shared_encoder"] = True
    if args.head_size is not None:
        parts["head_ids"] = _most_frequent(args, counts, config.vocab_size)
    if not parts:
        raise UsageError(
            "there is nothing to trim; give --decoder_layers, --encoder_layers, --shared_encoder "
            "or --head_size"
        )
    return Trim(**parts)


def _most_frequent(
    args: argparse.Namespace, counts: Counter[int], vocab_size: int
) -> tuple[int, ...]:
    """Returns the ids that the new head keeps: the `--head_size` most frequent ones."""
    size, folder = args.head_size, args.predictions
    if max(counts, default=0) >= vocab_size:
        raise UsageError(
            f"--predictions: {folder} has token {max(counts)}, and the model {vocab_size} ids; "
            "give outputs of a model with this vocabulary"
        )
    if not 1 <= size <= len(counts):
        raise UsageError(
            f"--head_size is {size} and {folder} has {len(counts)} different ids; give 1 to "
            f"{len(counts)}"
        )
    return most_frequent(counts, size)
