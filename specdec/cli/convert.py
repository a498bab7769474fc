"""`specdec convert`: writes a checkpoint in another format."""

from __future__ import annotations

import argparse
import dataclasses
import time
from pathlib import Path
from typing import TypeGuard

import jax

from specdec import checkpoints, tasks
from specdec.checkpoints import TextModel, Vocabulary, model_card
from specdec.cli.output import settle_paths
from specdec.common import resources
from specdec.common.terminal import visible
from specdec.models.contract.family import Config
from specdec.models.t5 import T5Config


def command(args: argparse.Namespace) -> None:
    settle_paths(args)
    text = checkpoints.text_model_from(args.input, needed=False)
    vocabulary = _vocabulary(args, text)
    output = checkpoints.check_output(args.output, args.format, vocabulary)
    config = _config(args)
    start = time.perf_counter()
    params = checkpoints.load(args.input, config=config, dtype=args.dtype)
    loaded = time.perf_counter()
    text_side = {**text.kept(), "vocabulary": vocabulary}
    checkpoints.save(output, params, config=config, format=args.format, **text_side)
    model_card.copy(checkpoints.directory.locate(args.input).directory, output)
    leaves = jax.tree.leaves(params)
    size, dtypes = sum(leaf.nbytes for leaf in leaves), {leaf.dtype.name for leaf in leaves}
    print(
        f"wrote {visible(output)}: {sum(leaf.size for leaf in leaves):,} parameters, "
        f"{' and '.join(sorted(dtypes))}, {size / 1e6:,.1f} MB, read in {loaded - start:.1f} s and "
        f"written in {time.perf_counter() - loaded:.1f} s; "
        f"vocabulary: {visible(vocabulary or 'none')}"
    )
    if lost := _lost(args, text):
        print(f"{output} is without {lost}")
    if args.format == "huggingface" and _is_deeper(config):
        print(
            f"{output} has a decoder of {config.num_decoder_layers} layers and an encoder of "
            f"{config.num_encoder_layers}: `generate` of transformers 5.24 ends in an IndexError; "
            "give it use_cache=False"
        )
    if args.format == "t5x" and (unread := _unread_by_t5x(vocabulary, text)):
        print(
            f"{output} keeps {' and '.join(unread)} in files that T5X itself does not read; "
            "specdec does"
        )


def _is_deeper(config: Config) -> TypeGuard[T5Config]:
    """Returns whether a T5's decoder has more layers than its encoder.

    The cache of transformers has as many layers as the encoder.
    """
    return isinstance(config, T5Config) and config.num_decoder_layers > config.num_encoder_layers


def _lost(args: argparse.Namespace, text: TextModel) -> str | None:
    """Says what the output lacks of the input's vocabulary; None if it lacks nothing."""
    if args.vocabulary is not None:
        added = text.vocabulary.added if text.vocabulary else []
        return (
            f"the input's {len(added)} added tokens, for --vocabulary has none" if added else None
        )
    try:
        checkpoints.vocabulary_from(args.input)
    except checkpoints.CheckpointError as error:
        return f"the input's vocabulary: {error}"
    return None


def _unread_by_t5x(vocabulary: Vocabulary | None, text: TextModel) -> list[str]:
    """Names the settings and ids of a checkpoint that T5X does not read."""
    parts = [f"generation settings ({', '.join(text.in_effect)})"] if text.in_effect else []
    if vocabulary is not None and vocabulary.added:
        parts.append(f"{len(vocabulary.added)} added tokens")
    if text.start_id:
        parts.append(f"the start id {text.start_id}")
    if text.pad_id:
        parts.append(f"the padding id {text.pad_id}")
    if len(text.stop_ids) > 1:
        parts.append(f"the end ids {', '.join(map(str, text.stop_ids))}")
    return parts


def _vocabulary(args: argparse.Namespace, text: TextModel) -> Vocabulary | None:
    if args.vocabulary is None:
        return text.vocabulary
    if args.vocabulary == "bytes":
        return Vocabulary(None)
    path = resources.shipped(args.vocabulary)
    tasks.SentencePiece(path).plain()
    return Vocabulary(Path(path))


def _config(args: argparse.Namespace) -> Config:
    if args.config is None:
        return checkpoints.config_from(args.input, args.dtype)
    config = checkpoints.read_config(Path(args.config))
    return config if args.dtype is None else dataclasses.replace(config, dtype=args.dtype)
