"""Policy-gradient fine-tuning of a target, with roll-outs drawn by speculative decoding.

The target is the policy. It writes k outputs for each text, and each output gets a reward. An
update makes an output likelier if its reward exceeds the mean of the other outputs of its text
(REINFORCE, Williams 1992; Kool et al. 2019).

Exact speculation draws outputs from the target's own distribution, so the expected gradient does
not depend on the draft. `DecodeOutput.log_probs` has the target's log-probabilities of the emitted
tokens, from the calls that verified them. The draft may follow the moving target: it is aligned on
the same roll-outs. Parameters are arguments of every program, so nothing is compiled again.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Annotated, NamedTuple, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from specdec.common.values import Checked, PositiveInt, number
from specdec.decoding import row_keys
from specdec.decoding.program import DecodeProgram
from specdec.models.contract.model import Model
from specdec.plan import Plan
from specdec.sampling import Sampling
from specdec.training.alignment import Align
from specdec.training.loss import Drawn, Learner, Pairs, Sums, teacher_forced
from specdec.training.objectives import Objective
from specdec.training.optimizer import Adafactor, LearningRate
from specdec.training.updates import Recipe, State, train_step
from specdec.types import Array, DecodeOutput, Params, PyTree

# The reward of an output, from the ids of the text's target and those of the output.
Reward: TypeAlias = Callable[[list[int], list[int]], float]
SeveralSamples = Annotated[int, number(lambda k: k >= 2, "a whole number from 2 on")]
SAME = 0.01  # nats by which two programs may differ in the log-probability of an output


def leave_one_out(rewards: ArrayLike, samples: int) -> np.ndarray:
    """Returns [B] advantages: each reward minus the mean reward of its text's other outputs.

    The baseline does not depend on the output itself, so the gradient stays unbiased.

    Args:
      rewards: [B], the outputs of a text one after the other.
      samples: k, the number of outputs per text.

    >>> leave_one_out([1.0, 0.0, 3.0, 3.0], samples=2).tolist()
    [1.0, -1.0, 0.0, 0.0]
    """
    rows = np.asarray(rewards, np.float32).reshape(-1, samples)
    return ((rows - rows.mean(axis=1, keepdims=True)) * samples / (samples - 1)).reshape(-1)


@dataclasses.dataclass(frozen=True)
class PolicyGradient(Objective):
    """The mean over outputs of -advantage * sum over tokens of p(token) / p_drawn(token).

    p_drawn is the probability with which the token was drawn, `Drawn.log_probs`. While the
    parameters are those that drew the outputs, the gradient is that of -advantage * log p(output).

    `Sums.tokens` counts outputs rather than tokens: a mean over a random number of tokens would be
    biased. `Sums.correct` counts outputs whose log-probability is the recorded one within `SAME`
    nats. In the first update after a roll-out, these are all outputs.
    """

    def sums(self, learner: Learner, pairs: Pairs, smoothing: float, key: Array | None) -> Sums:
        model, params, frozen = learner
        assert pairs.drawn is not None, "FineTuning gives it"
        then, lengths, advantages = pairs.drawn
        logits = teacher_forced(model, params, pairs, frozen)
        # Not a gather, see `cross_entropy`.
        chosen = jnp.arange(logits.shape[-1])[None, None] == pairs.targets[..., None]
        now = jnp.where(chosen, logits, 0.0).sum(axis=-1) - jax.nn.logsumexp(logits, axis=-1)
        inside = jnp.arange(then.shape[1])[None] < lengths[:, None]
        change = jnp.where(inside, now - then, 0.0)
        ratios = jnp.where(inside, jnp.exp(change), 0.0)
        there = lengths > 0
        same = there & (jnp.abs(change.sum(axis=1)) < SAME)
        return Sums(-(advantages * ratios.sum(axis=1)).sum(), same.sum(), there.sum())


class Policy(NamedTuple):
    """The state that fine-tuning changes."""

    params: Params  # of target and draft
    optimizers: dict[str, PyTree]  # role -> the optimizer's state
    step: int  # updates so far


class PolicyUpdate(NamedTuple):
    """Figures of one update."""

    reward: float  # mean over roll-outs
    same: float  # share of roll-outs whose recorded log-probability is the policy's
    tokens: int  # drawn
    calls: int  # target calls, summed over rows
    steps: int  # target calls of the whole batch
    seconds: dict[str, float]  # roll-outs, rewards, update and realignment


@dataclasses.dataclass(frozen=True)
class FineTuning(Checked):
    """Settings of a policy-gradient run.

    Args:
      plan: the plan that draws the roll-outs: exact, with `Sampling()`. `plan.alone()` draws them
        without a draft.
      steps: the number of updates, over which weights of `align` may change.
      samples: k >= 2, the number of outputs of each text.
      optimizer: the target's optimizer.
      align: realigns the draft on the roll-outs; None leaves the draft unchanged.
      align_optimizer: the draft's optimizer.
      align_every: updates of the target for each update of the draft.
      seed: the seed of the roll-outs.

    Example:

    >>> from specdec.testing import TableTarget
    >>> from specdec.drafters import Autoregressive
    >>> from specdec.schedules import Fixed
    >>> from specdec.verifiers import Block
    >>> target, draft = TableTarget(5), TableTarget(5)
    >>> drafter = Autoregressive(draft, Sampling())
    >>> plan = Plan(target, drafter, Block(), Fixed(2), Sampling(), max_length=4)
    >>> tuning = FineTuning(plan, steps=10)
    >>> key, texts = jax.random.key(0), Pairs(np.full([4, 2], 2), np.full([4, 3], 3))
    >>> policy = tuning.begin(Params(target.init(key), draft.init(key)))
    >>> policy, update = tuning.update(policy, texts, lambda target, output: output.count(3))
    >>> policy.step, update.same
    (1, 1.0)
    """

    plan: Plan
    steps: PositiveInt
    samples: SeveralSamples = 4
    optimizer: Adafactor = Adafactor(LearningRate(peak=1e-3, warmup=1))
    align: Align | None = None
    align_optimizer: Adafactor = Adafactor(LearningRate(peak=3e-3, warmup=1))
    align_every: PositiveInt = 1
    seed: int = 0

    def __post_init__(self):
        super().__post_init__()
        plan = self.plan
        if not plan.exact:
            raise ValueError(f"roll-outs would not have the target's distribution: {plan}")
        if plan.sampling != Sampling():
            raise ValueError(
                f"plan.sampling is {plan.sampling}, and log-probabilities are those of temperature "
                "1; give Sampling()"
            )
        if self.align is not None:
            if "draft" not in plan.models():
                raise ValueError("plan has no draft model that align could change; leave align out")
            self.align.check(plan.models()["draft"], None)

    @functools.cached_property
    def program(self) -> DecodeProgram:
        """The program that draws roll-outs."""
        return DecodeProgram(self.plan)

    @functools.cached_property
    def recipes(self) -> dict[str, Recipe]:
        """The settings of updates, by the role of the model that is trained."""
        # An update reads no checkpoint, so any `Target` will do.
        models = {role: cast(Model, model) for role, model in self.plan.models().items()}
        target = models["target"]
        rest = self.seed, self.steps
        recipes = {"target": Recipe(target, None, PolicyGradient(), self.optimizer, *rest)}
        if self.align is not None:
            rest = self.align_optimizer, *rest
            recipes["draft"] = Recipe(models["draft"], target, self.align, *rest)
        return recipes

    def begin(self, params: Params) -> Policy:
        """Returns the policy before the first update; `params` stay unchanged.

        Args:
          params: the parameters of each role of the plan.
        """
        params = jax.tree.map(jnp.array, params)  # updates reuse the memory of their arguments
        optimizers = {
            role: recipe.optimizer.transformation().init(params[role])
            for role, recipe in self.recipes.items()
        }
        return Policy(params, optimizers, 0)

    def roll_out(
        self, params: Params, texts: Pairs, step: int
    ) -> tuple[PyTree, DecodeOutput, float]:
        """Draws k outputs for each text.

        Args:
          params: of target and draft.
          texts: the texts.
          step: the number of the batch, from which the random keys are derived.

        Returns:
          The inputs, each k times; the outputs, on the host; and the seconds without compiling.
        """
        inputs = jax.tree.map(lambda x: jnp.repeat(x, self.samples, axis=0), texts.inputs)
        count = len(texts.targets)
        rows, samples = jnp.divmod(jnp.arange(count * self.samples), self.samples)
        keys = row_keys(self.seed, rows + step * count, samples)
        return inputs, *self.program.fetch(params, keys, inputs)

    def update(self, policy: Policy, texts: Pairs, reward: Reward) -> tuple[Policy, PolicyUpdate]:
        """Draws roll-outs, rewards them, and updates the target and, if it is due, the draft.

        Args:
          policy: the state, whose memory is reused.
          texts: inputs, and the targets that the reward compares outputs with.
          reward: the reward of an output.

        Returns:
          The state after the update, and its figures.
        """
        inputs, output, seconds = self.roll_out(policy.params, texts, policy.step)
        clock = [time.perf_counter()]
        rewards = self.rewards(texts, output, reward)
        clock.append(time.perf_counter())
        pairs = self.pairs(inputs, output, rewards)
        policy, sums = self.train("target", policy, pairs)
        clock.append(time.perf_counter())
        if self.align is not None and (policy.step + 1) % self.align_every == 0:
            policy, _ = self.train("draft", policy, pairs._replace(drawn=None))
        clock.append(time.perf_counter())
        parts = "rewards", "update", "realignment"
        figures = PolicyUpdate(
            reward=float(np.mean(rewards)),
            same=float(sums.correct / max(sums.tokens, 1)),
            tokens=int(output.length.sum()),
            calls=int(output.trace.calls.sum()),
            steps=int(output.trace.steps),
            seconds={"roll-outs": seconds} | dict(zip(parts, np.diff(clock).tolist(), strict=True)),
        )
        return policy._replace(step=policy.step + 1), figures

    def rewards(self, texts: Pairs, output: DecodeOutput, reward: Reward) -> np.ndarray:
        """Returns [B], the reward of each roll-out."""
        pad, rewards = self.plan.target.pad_id, []
        for row, (tokens, length) in enumerate(zip(output.tokens, output.length, strict=True)):
            target = np.asarray(texts.targets[row // self.samples])
            rewards.append(reward(target[target != pad].tolist(), tokens[:length].tolist()))
        return np.array(rewards, np.float32)

    def pairs(self, inputs: PyTree, output: DecodeOutput, rewards: np.ndarray) -> Pairs:
        """Returns roll-outs and their advantages as a batch for `train`."""
        advantages = leave_one_out(rewards, self.samples)
        drawn = Drawn(output.log_probs, output.length, advantages)
        return Pairs(inputs, padded(output, self.plan.target.pad_id), drawn=drawn)

    def train(self, role: str, policy: Policy, pairs: Pairs) -> tuple[Policy, Sums]:
        """Returns the policy after an update of one model, when the update is finished.

        Args:
          role: "target", or "draft" if there is `align`.
          policy: the state; the memory of this model's part is reused.
          pairs: roll-outs, for the target with `drawn`.
        """
        params, optimizers, step = policy
        state = State(params[role], optimizers[role], jnp.int32(step))
        target = () if role == "target" else params["target"]
        state, sums = train_step(state, pairs, target, recipe=self.recipes[role])
        jax.block_until_ready(state)
        params = params | {role: state.params}
        return Policy(params, {**optimizers, role: state.optimizer}, step), jax.device_get(sums)


def padded(output: DecodeOutput, pad_id: int) -> np.ndarray:
    """Returns [B, N] int32, the outputs with padding after their last tokens."""
    inside = np.arange(output.tokens.shape[1])[None] < np.asarray(output.length)[:, None]
    return np.where(inside, output.tokens, pad_id)
