"""A drafter that runs the target's first layers only.

Elhoushi et al. 2024, "LayerSkip" (2404.16710), and Zhang et al. 2023, "Draft & Verify"
(2309.08168): speculation without a second model. Verification reuses what the first layers have
computed.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from specdec.common.values import Checked, PositiveInt, check_has
from specdec.drafters.draft_loop import Steps, draft_loop
from specdec.drafters.drafter import Drawing, Sampler
from specdec.drafters.matching import last_tokens
from specdec.models.contract.model import LayeredTarget, Target, check_model, finish
from specdec.models.heads import Heads
from specdec.types import Array, Cache, Context, Draft, Params, Part, PyTree, Request, Resume


@dataclasses.dataclass(frozen=True)
class EarlyExit(Checked, Drawing):
    """Drafts with the first layers of the target, on the target's own cache.

    The drafter has no state, because it writes the target's cache. Take a draft x1 x2 x3 after the
    pending token c. Each token below stands for its keys and values in the cache:

      upper layers    .. a b               .. a b c x1 x2 x3
      lower layers    .. a b c x1 x2       .. a b c x1 x2 x3
              after drafting       verification adds x3 below and c x1 x2 x3 above

    Args:
      layers: the number of decoder layers to run, from the first one. With all layers, the draft is
        the target's own output.
      sampling: the rule that draft tokens are drawn with, usually the target's.
      head: a `models.heads.Heads` with one head, trained on the states after these layers. It maps
        them to states for the target's projection. None projects them after the final norm.
      role: the role of the head's parameters.
    """

    layers: PositiveInt
    sampling: Sampler
    head: Heads | None = None
    role: str = "draft"

    def __post_init__(self):
        super().__post_init__()
        if self.head is not None:
            remedy = "a head on a layer's states, such as models.heads.Heads(config)"
            check_has("EarlyExit.head", self.head, "ahead config", remedy)
            if (heads := self.head.config.heads) != 1:
                raise ValueError(f"EarlyExit.head has {heads} heads; give one")

    def models(self) -> dict[str, Target]:
        return {} if self.head is None else {self.role: self.head}

    def with_models(self, models: Mapping[str, Target]) -> EarlyExit:
        return dataclasses.replace(self, head=models.get(self.role, self.head))

    @property
    def runs_target(self) -> bool:
        return True

    def itself(self, target: LayeredTarget) -> EarlyExit:
        """Returns this drafter with all layers of the target and no head."""
        return dataclasses.replace(self, layers=target.num_layers, head=None)

    def parts(self, length: int, source: int | None = None) -> tuple[Part, ...]:
        """Returns one call of the lower layers for each token."""
        return (Part("exit", 1, length),)

    def partial_models(self, target: LayeredTarget) -> dict[str, Target]:
        known = target.first(self.layers)
        return {} if known is None else {"exit": known}

    def timed(self, target: LayeredTarget) -> dict[str, Callable]:
        """Returns the call "exit" that drafts a token, and "target", the rest of verification."""

        def draft(trees: Mapping[str, PyTree], tokens: Array, cache: Cache):
            logits, _, fed = self._exit(target, trees, tokens, cache)
            return jnp.argmax(logits, axis=-1).astype(jnp.int32), fed

        def rest(trees: Mapping[str, PyTree], tokens: Array, cache: Cache):
            lower = functools.partial(target.decode, layers=(0, self.layers))
            begun = jax.eval_shape(lower, trees["target"], tokens, cache)[0].stream
            shape = *tokens[:, :-1].shape, begun.shape[-1]
            stream = jnp.broadcast_to(tokens[:, :-1, None], shape).astype(begun.dtype)
            drafted = jnp.full(tokens.shape[:1], tokens.shape[1] - 1, jnp.int32)
            resume = Resume(stream, cache, self.layers)
            output, fed = finish(target, trees["target"], tokens, resume, drafted)
            return jnp.argmax(output.logits, axis=-1).astype(jnp.int32), fed

        return {"exit": draft, "target": rest}

    def init(self, params: Params, context: Context) -> PyTree:
        target = context.target
        check_model("the target", target, LayeredTarget)
        assert isinstance(target, LayeredTarget)
        if self.layers > (layers := target.num_layers):
            raise ValueError(
                f"EarlyExit.layers is {self.layers} and the target has {layers} layers; give fewer"
            )
        return ()

    def propose(self, params: Params, request: Request, state: PyTree) -> tuple[Draft, PyTree]:
        context, drafts = request.context, request.longest
        target = context.target
        assert isinstance(target, LayeredTarget), "`init` asks for one"
        logits, first, cache = self._exit(target, params, last_tokens(context, 1), context.cache)
        stream = jnp.zeros([first.shape[0], drafts, first.shape[2]], first.dtype)

        def advance(carry: PyTree, tokens: Array) -> tuple[Array, PyTree]:
            i, stream, cache = carry
            logits, states, cache = self._exit(target, params, tokens[:, None], cache)
            return logits[:, 0], (i + 1, _put(stream, states, i), cache)

        steps = Steps(logits[:, 0], advance, (jnp.int32(1), _put(stream, first, 0), cache))
        draft, (_, stream, cache) = draft_loop(steps, request, self.sampling)
        cache = cache.rewind(context.cache.length)
        return draft.replace(resume=Resume(stream, cache, self.layers)), state

    def _exit(
        self, target: LayeredTarget, params: Mapping[str, PyTree], tokens: Array, cache: Cache
    ) -> tuple[Array, Array, Cache]:
        """Runs the lower layers on tokens [B, T]; returns the logits [B, T, V], the residual stream
        after the last of these layers, and the cache."""
        output, cache = target.decode(params["target"], tokens, cache, layers=(0, self.layers))
        assert output.stream is not None, "a call of some layers returns its stream"
        if self.head is None:
            return output.logits, output.stream, cache
        states = self.head.ahead(params[self.role], output.hidden)[:, :, 0]
        return target.logits(params["target"], states), output.stream, cache


def _put(stream: Array, states: Array, index: Array | int) -> Array:
    return jax.lax.dynamic_update_slice_in_dim(stream, states, index, axis=1)
