"""Heads that look ahead: they map a model's hidden states to the states of later tokens.

Stern et al. 2018, "Blockwise Parallel Decoding for Deep Autoregressive Models" (1811.03115),
section 6. Each head has its own hidden units here; in the paper, heads share them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, ClassVar, Protocol, cast

import jax
import jax.numpy as jnp
from flax import linen as nn

from specdec.common.values import Checked, NonNegativeFloat, PositiveInt, check_is, one_of
from specdec.models.bases.linen import LinenModel
from specdec.models.contract.cache import NoKeys
from specdec.models.contract.model import Config, Model, Weights, check_model
from specdec.models.layers.layers import ACTIVATIONS, DType, constrain, parameter
from specdec.models.layers.products import precision
from specdec.models.sizes.growing import Difference, Growth, Stream, alike, key_of_streams, opposed
from specdec.types import Array, ModelOutput, PyTree


@dataclasses.dataclass(frozen=True)
class HeadsConfig(Checked):
    """The architecture of heads that look ahead: head i predicts the token i places after the
    model's own next token."""

    # the vocabulary of the model whose states are read. That model projects to the logits.
    vocab_size: PositiveInt
    states_dim: PositiveInt  # the width of those states
    # the number of heads. Head i, from 1 on, looks i tokens beyond the model's own next token.
    heads: PositiveInt
    mlp_dim: PositiveInt  # hidden units of each head
    # of the hidden units, 'relu' or 'gelu'
    activation: Annotated[str, one_of(ACTIVATIONS)] = "relu"
    dtype: DType = "float32"  # of the products, 'float32' or 'bfloat16'

    def __post_init__(self):
        object.__setattr__(self, "dtype", jnp.dtype(self.dtype).name)
        super().__post_init__()


class Network(nn.Module):
    """Computes x + wo(activation(wi(x))), with wi and wo of each head."""

    config: HeadsConfig

    @nn.compact
    def __call__(self, states: Array) -> Array:
        """Maps [B, T, D] to [B, T, heads, D]."""
        c = self.config
        inner = (c.heads, c.states_dim, c.mlp_dim), ("heads_ahead", "embed", "mlp")
        outer = (c.heads, c.mlp_dim, c.states_dim), ("heads_ahead", "mlp", "embed")
        init = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal", batch_axis=(0,))
        # Small, so that training begins with the model's own prediction of the next token.
        small = nn.initializers.variance_scaling(0.01, "fan_in", "normal", batch_axis=(0,))
        wi = parameter(self, "wi", init, inner[1], inner[0]).astype(c.dtype)
        wo = parameter(self, "wo", small, outer[1], outer[0]).astype(c.dtype)
        x, exact = states.astype(c.dtype), precision(c.dtype)
        hidden = ACTIVATIONS[c.activation](jnp.einsum("btd,kdm->btkm", x, wi, precision=exact))
        ahead = x[:, :, None] + jnp.einsum("btkm,kmd->btkd", hidden, wo, precision=exact)
        return constrain(ahead, "batch", "length", None, "embed")


@dataclasses.dataclass(frozen=True)
class Heads(LinenModel):
    """The heads as a `Model`, so that they are trained, saved, loaded and divided like one.

    They have no vocabulary of their own. The model whose states they read projects the result of
    `ahead` to logits.
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
        """The distance of each head's token from the model's own next token."""
        return range(1, 1 + self.config.heads)

    def network(self) -> Network:
        return Network(self.config)

    def example(self) -> tuple[Array]:
        return (jnp.zeros([1, 1, self.config.states_dim], self.config.dtype),)

    def ahead(self, params: PyTree, states: Array, only: Array | None = None) -> Array:
        """Returns predicted states of later tokens, [B, T, heads, D], or of the head `only` []."""
        if only is None:
            return cast(Array, self.apply(params, states))
        single = dataclasses.replace(self, config=dataclasses.replace(self.config, heads=1))
        leaves = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, only, 1), params)
        return cast(Array, single.apply(leaves, states))

    def start(self, inputs: Array) -> Array:
        return jnp.zeros([inputs.shape[0]], jnp.int32)

    def prefill(self, params: PyTree, inputs: Array, capacity: int) -> NoKeys:
        """Returns an empty cache, because heads read no inputs."""
        return NoKeys(jnp.zeros([inputs.shape[0]], jnp.int32), capacity)

    def decode(
        self, params: PyTree, tokens: Array, cache: NoKeys, *, states: Array | None = None
    ) -> tuple[ModelOutput, NoKeys]:
        """Raises an error, because heads decode nothing by themselves."""
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
    """The architecture of target and heads, and the target's relative learning rate."""

    target: Config
    heads: HeadsConfig
    target_rate: float


@dataclasses.dataclass(frozen=True)
class HeadedTarget(Checked, Weights):
    """A target and heads on its states that are trained together (1811.03115, section 6).

    Training changes the target. Speculation with its heads reproduces the new target's greedy text,
    not that of the target it began with. This object is for training, not for decoding: target and
    heads become separate checkpoints that any run can use. Parameters are {'target': .., 'heads':
    ..}.
    """

    target: Model  # the model that is trained
    heads: Heads  # heads on its states
    # the target's learning rate divided by that of the heads, which start untrained
    target_rate: NonNegativeFloat = 1.0

    def __post_init__(self):
        super().__post_init__()
        check_model("HeadedTarget.target", self.target)
        check_is("HeadedTarget.heads", self.heads, Heads, "models.heads.Heads(config)")
        read = cast(TargetConfig, self.target.config)
        sizes = ("states_dim", read.emb_dim), ("vocab_size", self.target.vocab_size)
        for name, expected in sizes:
            if (value := getattr(self.heads.config, name)) != expected:
                raise ValueError(
                    f"HeadedTarget.heads has {name} {value} and its target {expected}; give "
                    f"{name} = {expected}"
                )

    @property
    def parts(self) -> Mapping[str, Model]:
        """The target and the heads, which have a checkpoint each, by their names in parameters."""
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
        """The distances of `Heads.places`, and before them 0 for the target's own next token."""
        return range(1 + self.heads.config.heads)

    def init(self, key: Array) -> PyTree:
        keys = jax.random.split(key)
        return {"target": self.target.init(keys[0]), "heads": self.heads.init(keys[1])}

    def axes(self) -> PyTree:
        return {name: part.axes() for name, part in self.parts.items()}

    def at_rates(self, updates: PyTree) -> PyTree:
        """Returns an optimizer's updates with the target's multiplied by `target_rate`."""
        target = jax.tree.map(lambda leaf: self.target_rate * leaf, updates["target"])
        return updates | {"target": target}

    def ahead(self, params: PyTree, states: Array, only: Array | None = None) -> Array:
        """Returns [B, T, 1+heads, D]: the states, for the next token, and those of `Heads.ahead`.

        If `only` [] is given, it is the index on the third axis of the states to return.
        """
        first, heads = states[:, :, None], params["heads"]
        if only is None:
            return jnp.concatenate([first, self.heads.ahead(heads, states)], axis=2)
        asked = self.heads.ahead(heads, states, jnp.maximum(only - 1, 0))
        return jnp.where(only == 0, first, asked)


class TargetConfig(Config, Protocol):
    """The config of a target that heads read."""

    @property
    def emb_dim(self) -> int: ...
    @property
    def mlp_dim(self) -> int: ...


class HeadsGrowth(Growth[HeadsConfig]):
    """The growth of heads, together with the target whose states they read.

    States of a grown target are s R x instead of x, with the R of `models.t5.growth`. The factor s
    arises if the target's table is tied. A head becomes

      s R x + wo' relu(wi' s R x)    with wi' = (D/D') R wi and wo' = wo R^T

    which is s R (x + wo relu(wi x)) for any s > 0, because relu(s y) = s relu(y). Added hidden
    units come in pairs whose outputs cancel.
    """

    growing: ClassVar[tuple[str, ...]] = ("states_dim", "mlp_dim")

    def resized(self, config: HeadsConfig, to: TargetConfig) -> HeadsConfig:
        """Returns the config for a target of the config `to`; heads get the size of its MLPs."""
        return dataclasses.replace(config, states_dim=to.emb_dim, mlp_dim=to.mlp_dim)

    def check_growth(self, config: HeadsConfig, to: HeadsConfig) -> None:
        super().check_growth(config, to)
        if config.activation != "relu":
            raise ValueError(
                f"HeadsConfig.activation is {config.activation!r}, and states of a grown target "
                "may be larger by a factor, which only 'relu' keeps; train heads with 'relu'"
            )

    def grow(self, params: PyTree, config: HeadsConfig, to: HeadsConfig, key: Array) -> PyTree:
        self.check_growth(config, to)
        stream = _stream(config, to, key)
        fresh = Heads(to).init(jax.random.split(key, 3)[1])
        units = slice(config.mlp_dim)

        def with_old(name: str, old: Array, axis: int) -> Array:
            """Returns the grown heads' array `name`, with the old hidden units first along `axis`.

            The units of each added pair are equal in `wi` and opposite in `wo`, so they cancel.
            """
            index = (slice(None),) * axis + (units,)
            new = fresh[name].at[index].set(jnp.float32(old).astype(fresh[name].dtype))
            return (alike if name == "wi" else opposed)(new, config.mlp_dim, axis)

        by_head = jax.vmap(lambda wi: stream.widen(wi, 0))
        wi = with_old("wi", by_head(params["wi"]), 2)
        wo = with_old("wo", stream.widen(params["wo"], 2), 1)
        dtype = params["wi"].dtype
        return {"wi": wi.astype(dtype), "wo": wo.astype(dtype)}

    def logit_difference(
        self,
        params: PyTree,
        config: HeadsConfig,
        others: PyTree,
        other: HeadsConfig,
        key: Array,
        *,
        grown_by: Array,
    ) -> Difference:
        """Compares the heads' outputs for random states [4, 32, D] with those of grown heads."""
        states = jax.random.normal(key, (4, 32, config.states_dim))
        stream = _stream(config, other, grown_by)
        first = stream.of(Heads(config).ahead(params, states))
        return Difference.between(first, Heads(other).ahead(others, stream.of(states)), "states")


def _stream(config: HeadsConfig, to: HeadsConfig, key: Array) -> Stream:
    return Stream.create(key_of_streams(key), config.states_dim, to.states_dim)
