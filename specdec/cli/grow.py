"""`specdec grow`: makes a larger checkpoint that computes the same function."""

from __future__ import annotations

import argparse

import jax

from specdec import checkpoints
from specdec.cli.output import model_line, settle_paths
from specdec.cli.presets import preset
from specdec.common import progress
from specdec.common.values import Seed, UsageError, check, one_line
from specdec.models import families


def command(args: argparse.Namespace) -> None:
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
    # bfloat16 would round terms that have to cancel.
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
