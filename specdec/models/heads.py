"""Heads that look ahead: states of one model become states of tokens further on.

Stern et al. 2018, "Blockwise Parallel Decoding for Deep Autoregressive Models" (1811.03115),
section 6. Each head has its own hidden units here; there, all of them are shared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, cast

import jax
import jax.numpy as jnp
from flax import linen as nn

from specdec.common.values import Checked, NonNegativeFloat, PositiveInt, check_is, one_of
from specdec.models.cache import NoKeys
from specdec.models.layers import ACTIVATIONS, DType, constrain, parameter, precision
from specdec.models.linen import LinenModel
from specdec.models.model import Model, Weights, check_model
from specdec.types import Array, ModelOutput, PyTree


@dataclasses.dataclass(frozen=True)
class HeadsConfig(Checked):
    """The architecture.

    vocab_size: of the model whose states are read, which projects to the logits.
    states_dim: its width.
    heads: how many there are; the i-th one, from 1 on, looks i tokens beyond the model's own next.
    mlp_dim: hidden units of each head.
    activation: of the hidden units, 'relu' or 'gelu'.
    dtype: of the products, 'float32' or 'bfloat16'.
    """

    vocab_size: PositiveInt
    states_dim: PositiveInt
    heads: PositiveInt
    mlp_dim: PositiveInt
    activation: Annotated[str, one_of(ACTIVATIONS)] = "relu"
    dtype: DType = "float32"

    def __post_init__(self):
        object.__setattr__(self, "dtype", jnp.dtype(self.dtype).name)
        super().__post_init__()


class Network(nn.Module):
    """x + wo(activation(wi(x))) with wi and wo of each head."""

    config: HeadsConfig

    @nn.compact
    def __call__(self, states: Array) -> Array:
        """[B, T, D] -> [B, T, heads, D]."""
        c = self.config
        inner = (c.heads, c.states_dim, c.mlp_dim), ("heads_ahead", "embed", "mlp")
        outer = (c.heads, c.mlp_dim, c.states_dim), ("heads_ahead", "mlp", "embed")
        init = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal", batch_axis=(0,))
        # Small, so that training begins with what the model itself holds likely.
        small = nn.initializers.variance_scaling(0.01, "fan_in", "normal", batch_axis=(0,))
        wi = parameter(self, "wi", init, inner[1], inner[0]).astype(c.dtype)
        wo = parameter(self, "wo", small, outer[1], outer[0]).astype(c.dtype)
        x, exact = states.astype(c.dtype), precision(c.dtype)
        hidden = ACTIVATIONS[c.activation](jnp.einsum("btd,kdm->btkm", x, wi, precision=exact))
        ahead = x[:, :, None] + jnp.einsum("btkm,kmd->btkd", hidden, wo, precision=exact)
        return constrain(ahead, "batch", "length", None, "embed")


@dataclasses.dataclass(frozen=True)
class Heads(LinenModel):
    """The heads as a `Model`, so that they are trained, saved, loaded and divided as one.

    They have no vocabulary of their own: `ahead` is projected with the model whose states they
    read.
    """

    config: HeadsConfig
    stop_ids: ClassVar[tuple[int, ...]] = ()

    @property
    def states_dim(self) -> int:
        return self.config.states_dim

    @property
    def num_layers(self) -> int:
        return 1

    @property
    def sizes(self) -> Mapping[str, int]:
        fields = ("states_dim", "heads", "mlp_dim")
        return MappingProxyType({name: getattr(self.config, name) for name in fields})

    @property
    def places(self) -> range:
        """How far each one looks beyond the model's own next token."""
        return range(1, 1 + self.config.heads)

    def network(self) -> Network:
        return Network(self.config)

    def example(self) -> tuple[Array]:
        return (jnp.zeros([1, 1, self.config.states_dim], self.config.dtype),)

    def ahead(self, params: PyTree, states: Array, only: Array | None = None) -> Array:
        """[B, T, D] states -> [B, T, heads, D]: those of the tokens further on, as it is guessed.

        only: [] int32, the one head, from 0, that is asked.
        """
        if only is None:
            return cast(Array, self.apply(params, states))
        one = dataclasses.replace(self, config=dataclasses.replace(self.config, heads=1))
        own = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, only, 1), params)
        return cast(Array, one.apply(own, states))

    def start(self, inputs: Any) -> Array:
        return jnp.zeros([inputs.shape[0]], jnp.int32)

    def prefill(self, params: PyTree, inputs: Any, capacity: int) -> NoKeys:
        """Reads nothing."""
        return NoKeys(jnp.zeros([inputs.shape[0]], jnp.int32), capacity)

    def decode(
        self, params: PyTree, tokens: Array, cache: NoKeys, *, states: Array | None = None
    ) -> tuple[ModelOutput, NoKeys]:
        """Not a model of texts by itself.

        Raises:
          ValueError: always; see `drafters.Blockwise`.
        """
        raise ValueError(
            "heads look ahead from the states of a model, and decode nothing by themselves; use "
            "them in the drafter Blockwise"
        )

    def cache_bytes(
        self, rows: int, slots: int, inputs_length: int, mesh: Mapping[str, int] | None = None
    ) -> int:
        return 0


@dataclasses.dataclass(frozen=True)
class HeadedConfig:
    """The architecture of both, and how the target learns."""

    target: Any
    heads: HeadsConfig
    target_rate: float


@dataclasses.dataclass(frozen=True)
class HeadedTarget(Checked, Weights):
    """A target and heads on its states that are trained together (1811.03115, section 6).

    What comes of it is another target, with other texts: its own greedy text is what speculation
    with its heads keeps exactly, and not that of the one it began with. It is trained, and not
    decoded with: each part is a checkpoint, for a run as any other. Parameters are
    {'target': .., 'heads': ..}.

    target_rate: the target's learning rate over the heads', which begin with nothing.
    """

    target: Model
    heads: Heads
    target_rate: NonNegativeFloat = 1.0

    def __post_init__(self):
        super().__post_init__()
        check_model("HeadedTarget.target", self.target)
        check_is("HeadedTarget.heads", self.heads, Heads, "models.heads.Heads(config)")
        sizes = ("states_dim", self.target.config.emb_dim), ("vocab_size", self.target.vocab_size)
        for name, own in sizes:
            if (value := getattr(self.heads.config, name)) != own:
                raise ValueError(
                    f"HeadedTarget.heads has {name} {value} and its target {own}; give {name} = "
                    f"{own}"
                )

    @property
    def parts(self) -> Mapping[str, Model]:
        """Returns the models with a checkpoint each, by the name of their parameters."""
        return {"target": self.target, "heads": self.heads}

    @property
    def config(self) -> HeadedConfig:
        return HeadedConfig(self.target.config, self.heads.config, self.target_rate)

    @property
    def pad_id(self) -> int:
        return self.target.pad_id

    @property
    def vocab_size(self) -> int:
        return self.target.vocab_size

    @property
    def places(self) -> range:
        """The places of `Heads`, and the target's own next token before them."""
        return range(1 + self.heads.config.heads)

    def init(self, key: Array) -> PyTree:
        keys = jax.random.split(key)
        return {"target": self.target.init(keys[0]), "heads": self.heads.init(keys[1])}

    def axes(self) -> PyTree:
        return {name: part.axes() for name, part in self.parts.items()}

    def at_rates(self, updates: PyTree) -> PyTree:
        """Updates of an optimizer that gives both the heads' rate."""
        own = jax.tree.map(lambda leaf: self.target_rate * leaf, updates["target"])
        return updates | {"target": own}

    def ahead(self, params: PyTree, states: Array, only: Array | None = None) -> Array:
        """Returns what `Heads` returns, and before it the states themselves, of the next token."""
        own, heads = states[:, :, None], params["heads"]
        if only is None:
            return jnp.concatenate([own, self.heads.ahead(heads, states)], axis=2)
        asked = self.heads.ahead(heads, states, jnp.maximum(only - 1, 0))
        return jnp.where(only == 0, own, asked)
