"""Lists the parameters of T5X's own network at the sizes of its own gin files.

  python scripts/golden/make_ladder_listing.py T5X

T5X is a checkout of google-research/t5x. Writes tests/golden/ladder.json: for each model its number
of parameters and a digest of their names and shapes, for two models the names and shapes too.
Nothing of specdec is used, and nothing is allocated.
"""

import argparse
import functools
import hashlib
import json
import math
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from gin import config_parser

MODELS = {
    "t5_1_0": ("small", "base", "large", "3B", "11B"),
    "t5_1_1": ("small", "base", "large", "xl", "xxl"),
    "mt5": ("small", "base", "large", "xl", "xxl"),
    "byt5": ("small", "base", "large", "xl", "xxl"),
}
LISTED = ("t5_1_0_small", "t5_1_1_small")


class NothingEvaluated(config_parser.ParserDelegate):
    """Leaves out what gin files refer to, so that T5X's trainer need not be installed."""

    def configurable_reference(self, scoped_configurable_name, evaluate):
        return None

    def macro(self, macro_name):
        return None


def sizes(checkout: Path, file: str) -> Iterator[tuple[str, Any]]:
    """The fields of `network.T5Config` that a gin file binds, after those of its includes."""
    with open(checkout / file, encoding="utf-8") as text:
        for statement in config_parser.ConfigParser(text, NothingEvaluated()):
            if isinstance(statement, config_parser.IncludeStatement):
                yield from sizes(checkout, statement.filename)
            elif isinstance(statement, config_parser.BindingStatement):
                if statement.selector == "network.T5Config" and statement.value is not None:
                    yield statement.arg_name, statement.value


def network_of(checkout: Path) -> types.ModuleType:
    """T5X's network alone: importing the package as a whole would import the trainer."""
    package = types.ModuleType("t5x")
    package.__path__ = [str(checkout / "t5x")]
    sys.modules["t5x"] = package
    from t5x.examples.t5 import network  # pyright: ignore[reportMissingImports]

    return network


def shapes(network: types.ModuleType, config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Each parameter's shape by its name."""
    transformer = network.Transformer(network.T5Config(**config))
    tokens = jnp.ones([1, 1], jnp.int32)
    init = functools.partial(transformer.init, enable_dropout=False)
    params = jax.eval_shape(init, jax.random.key(0), tokens, tokens, tokens)["params"]
    leaves = jax.tree_util.tree_leaves_with_path(params)
    name = functools.partial(jax.tree_util.keystr, simple=True, separator="/")
    return {name(path): leaf.shape for path, leaf in leaves}


def main() -> None:
    parser = argparse.ArgumentParser(description="Lists the parameters of T5X's network.")
    parser.add_argument("t5x", type=Path)
    checkout = parser.parse_args().t5x
    network = network_of(checkout)
    models, listings = {}, {}
    for family, names in MODELS.items():
        for size in names:
            config = dict(sizes(checkout, f"t5x/examples/t5/{family}/{size}.gin"))
            found = shapes(network, config)
            lines = sorted(f"{name} {list(shape)}" for name, shape in found.items())
            preset = f"{family}_{size.lower()}"
            models[preset] = {
                "parameters": sum(map(math.prod, found.values())),
                "sha256": hashlib.sha256("\n".join(lines).encode()).hexdigest(),
            }
            if preset in LISTED:
                listings[preset] = lines
    golden = Path(__file__).resolve().parents[2] / "tests" / "golden" / "ladder.json"
    ladder = json.dumps({"models": models, "listings": listings}, indent=1)
    golden.write_text(f"{ladder}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
