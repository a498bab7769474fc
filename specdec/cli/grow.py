"""`specdec grow`: a checkpoint at another size that computes the same."""

from __future__ import annotations

import argparse

import jax

from specdec import checkpoints
from specdec.cli.output import add_paths, model_line, settle_paths
from specdec.cli.presets import preset
from specdec.common import progress
from specdec.common.values import Seed, UsageError, check, one_line
from specdec.models import families


def add_command(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "grow",
        help="make a checkpoint as large as a released model, with the same function",
        description="Reads a checkpoint of any known format and writes one, in our own, of a "
        "larger model with the same logits: a stand-in for weights that cannot be downloaded, to "
        "measure speed with. Taken from the preset are the sizes (of a T5 emb_dim, num_heads, "
        "head_dim, mlp_dim and the numbers of layers); the vocabulary, the activations, whether "
        "embedding and logits are tied, and all else stay the input's. Heads that look ahead grow "
        "to the states of such a model, with its seed. Weights are written in float32.",
        command=_command,
    )
    add_paths(parser)
    parser.add_argument(
        "--preset",
        required=True,
        metavar="NAME",
        help="a scope of the gin file of the input's family, as t5_1_1_base is of models/t5.gin",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of all random weights (default: 0)"
    )
    return parser


def _command(args: argparse.Namespace) -> None:
    settle_paths(args)
    check("--seed", args.seed, Seed, UsageError)
    text = checkpoints.text_model_from(args.input, needed=False)
    output = checkpoints.check_output(args.output, "orbax", text.vocabulary)
    model = checkpoints.model_from(args.input)
    with one_line():
        growth = families.growth_of(model.config)
    larger = preset("--preset", args.preset, model).config
    with one_line(f"{args.input} does not grow to {args.preset}: "):
        to = families.model_of(families.resized(model.config, larger))
    # bfloat16, in which some are stored, would round what has to cancel.
    params = checkpoints.load(args.input, config=model.config, dtype="float32")
    growth_key, test_key = jax.random.split(jax.random.key(args.seed))
    with progress.bar("growing", 2, "step") as bar:
        grown = jax.block_until_ready(families.resize(params, model.config, larger, growth_key))
        bar.update()
        bar.set_description("comparing the logits")
        difference = growth.logit_difference(
            params, model.config, grown, to.config, test_key, grown_by=growth_key
        )
    checkpoints.save(output, grown, config=to.config, **text.kept())
    print(f"read {args.input}: {model_line(params, model)}")
    print(f"wrote {output}: {model_line(grown, to)}")
    print(difference)
