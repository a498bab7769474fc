"""`specdec grow`: a checkpoint at another size, that computes the same."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import re

import jax

import gin
from specdec import checkpoints, standins
from specdec.cli import settings
from specdec.cli.settings import UsageError
from specdec.models.t5 import T5Config, T5Target
from specdec.types import PyTree

PRESETS = "models/t5.gin"


def add_command(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "grow",
        help="make a checkpoint as large as a released T5, with the same function",
        description="Reads a checkpoint of any known format and writes one, in our own, of a "
        "larger model with the same logits: a stand-in for weights that cannot be downloaded, to "
        "measure speed with. Taken from the preset are emb_dim, num_heads, head_dim, mlp_dim and "
        "the numbers of layers; the vocabulary, the activations, whether embedding and logits are "
        "tied, and all else stay the input's. Weights are written in float32.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--input", required=True, metavar="DIR", help="a checkpoint's directory, or a gs:// one"
    )
    parser.add_argument(
        "--preset", required=True, metavar="NAME", help=f"a scope of {PRESETS}, as in t5_1_1_base"
    )
    parser.add_argument("--output", required=True, metavar="DIR", help="the directory to make")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of all random weights (default: 0)"
    )
    parser.set_defaults(command=_command)
    return parser


def _command(args: argparse.Namespace) -> None:
    vocabulary = checkpoints.vocabulary_from(args.input, needed=False)
    output = checkpoints.check_output(args.output, "orbax", vocabulary)
    config = checkpoints.config_from(args.input)
    sizes = _preset(args.preset)
    to = dataclasses.replace(config, **{name: getattr(sizes, name) for name in standins.SIZES})
    try:
        standins.check_growth(config, to)
    except ValueError as error:
        raise UsageError(f"{args.input} does not grow to {args.preset}: {error}") from error
    # bfloat16, in which some are stored, would round what has to cancel.
    params = checkpoints.load(args.input, config=config, dtype="float32")
    growth_key, test_key = jax.random.split(jax.random.key(args.seed))
    grown = standins.grow(params, config, to, growth_key)
    difference = standins.logit_difference(params, config, grown, to, test_key)
    checkpoints.save(output, grown, config=to, vocabulary=vocabulary)
    print(f"read {args.input}: {_described(params, config)}")
    print(f"wrote {output}: {_described(grown, to)}")
    print(f"logits of random texts differ by at most {difference}")


def _preset(name: str) -> T5Config:
    """The model of a scope in the gin file of T5's sizes."""
    flags = argparse.Namespace(
        gin_file=[PRESETS], gin_bindings=[], gin_search_paths=".", tfds_data_dir=None
    )
    scope = name if name.isidentifier() else None  # others gin refuses before it reads the file
    with contextlib.suppress(UsageError), gin.config_scope(scope):
        return settings.build(T5Target, flags, {}).config
    known = sorted(set(re.findall(r"^(\w+)/t5\.", gin.config_str(), re.MULTILINE)))
    raise UsageError(f"--preset is {name!r}; give a scope of {PRESETS}: {', '.join(known)}")


def _described(params: PyTree, config: T5Config) -> str:
    sizes = ", ".join(f"{name} {getattr(config, name)}" for name in standins.SIZES)
    return f"{sum(leaf.size for leaf in jax.tree.leaves(params)):,} parameters ({sizes})"
