"""Each processor against its definition in plain Python, and against Hugging Face:
pytest tests/sampling/test_processors.py"""

from __future__ import annotations

import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import teacher_forced

from specdec import checkpoints, score
from specdec.sampling import (
    ForcedEOS,
    ForcedTokens,
    FrequencyPenalty,
    Greedy,
    MinLength,
    NoBadWords,
    NoRepeatNGram,
    Opening,
    PresencePenalty,
    Processed,
    RepetitionPenalty,
    Sampling,
    SuppressTokens,
    SuppressTokensAtBegin,
    Timestamps,
    before_each,
    check_ids,
    in_order,
    instead,
    standardised,
    unprocessed,
    with_processors,
)
from specdec.testing import TableTarget
from specdec.types import History

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
SIZE, ROOM, STOP = 7, 14, (1, 5)
NEVER = -math.inf


def no_repeat(n):
    def of(text, logits):
        seen = {tuple(text[i : i + n]) for i in range(len(text) - n + 1)}
        return [NEVER if (*text[len(text) - n + 1 :], x) in seen else y for x, y in logits]

    return of


def penalty(by):
    def of(text, logits):
        return [by(text, x, y) for x, y in logits]

    return of


def repeated(text, x, y):
    return y if x not in text else y * 1.5 if y < 0 else y / 1.5


def bad_words(text, logits):
    def ends_in(words):
        return len(text) > len(words) and tuple(text[len(text) - len(words) :]) == words

    bad = {4: [()], 2: [(3,)], 6: [(2, 2), (0, 1, 3)]}
    return [NEVER if any(map(ends_in, bad.get(x, []))) else y for x, y in logits]


def only(where, which):
    """At the output positions `where` says, only the tokens `which` says."""

    def of(text, logits):
        at = len(text) - 1
        return [y if not where(at) or which(at, x) else NEVER for x, y in logits]

    return of


def forced(where, which):
    def of(text, logits):
        at = len(text) - 1
        return [y if not where(at) else 0.0 if which(at, x) else NEVER for x, y in logits]

    return of


def opening(text, logits):
    at, known = len(text) - 1, dict(logits)
    if at > 1:
        return [y for _, y in logits]
    likeliest = 3 if at else max((6, 2), key=known.__getitem__)
    return [0.0 if x == likeliest else NEVER for x, _ in logits]


def timestamps(text, logits):
    """Ids from 4 on are times, and those below 2 words; the output's first token is another's."""
    body = text[2:]
    if len(text) < 2:
        return [y for _, y in logits]
    is_time = [x >= 4 for x in body]
    half = is_time[-2:] == [False, True]  # of a pair: the next one, or the end, comes
    least = max([4, *(x + (not half) for x, time in zip(body, is_time, strict=True) if time)][-1:])

    def allowed(x):
        if not body:
            return x in (4, 5)
        if x >= 4:
            return x >= least and (half or not is_time[-1])
        return x != 3 and not (half and x < 2)

    left = [y if allowed(x) else NEVER for x, y in logits]
    times = math.log(sum(map(math.exp, left[4:])) or 1e-99)
    if times > max(left[:4]):
        left[:4] = [NEVER] * 4
    return left


# name: (the processor, its definition: text with its start token, (id, logit)s -> logits)
PROCESSORS = {
    **{f"no repeat {n}": (NoRepeatNGram(n), no_repeat(n)) for n in (1, 2, 3, 4, 5)},
    "repetition": (RepetitionPenalty(1.5), penalty(repeated)),
    "frequency": (FrequencyPenalty(0.7), penalty(lambda t, x, y: y - 0.7 * t[1:].count(x))),
    "presence": (PresencePenalty(0.7), penalty(lambda t, x, y: y - 0.7 * (x in t[1:]))),
    "bad words": (NoBadWords(((4,), (3, 2), (2, 2, 6), (0, 1, 3, 6))), bad_words),
    "shortest": (MinLength(4), only(lambda at: at < 4, lambda at, x: x not in STOP)),
    "suppressed": (SuppressTokens((2, 6)), only(lambda at: True, lambda at, x: x not in (2, 6))),
    "not third": (SuppressTokensAtBegin((3,), 2), only(lambda at: at == 2, lambda at, x: x != 3)),
    "forced": (
        ForcedTokens((6, 2), 3),
        forced(lambda at: at in (3, 4), lambda at, x: x == {3: 6, 4: 2}[at]),
    ),
    "opening": (Opening(((6, 2), (3,))), opening),
    "timestamps": (Timestamps(3, 2, position=1, latest_first=1), timestamps),
    "forced end": (ForcedEOS(6), forced(lambda at: at >= 5, lambda at, x: x in STOP)),
}


def texts(rows=60):
    """Of all lengths, behind which there is garbage; few tokens, so that they repeat."""
    random = np.random.default_rng(0)
    tokens = random.integers(0, SIZE, [rows, ROOM]).astype(np.int32)
    tokens[::3] = tokens[::3] % 3
    lengths = 1 + np.arange(rows, dtype=np.int32) % ROOM
    return tokens, lengths, random.normal(0, 3, [rows, SIZE]).astype(np.float32)


@pytest.mark.parametrize("name", PROCESSORS)
def test_it_does_what_its_definition_says(name):
    processor, definition = PROCESSORS[name]
    tokens, lengths, logits = texts(240)
    history = History(jnp.asarray(tokens), jnp.asarray(lengths), STOP)
    ours = Processed(Greedy(), (processor,)).process(jnp.asarray(logits), history)
    right = np.array(
        [
            definition(text[:length], list(enumerate(row)))
            for text, length, row in zip(tokens.tolist(), lengths, logits.tolist(), strict=True)
        ]
    )
    nothing = np.all(right == NEVER, axis=1)  # is left: the text ends
    right[nothing] = [0.0 if x in STOP else NEVER for x in range(SIZE)]
    # Each is one float32 operation on numbers below 16.
    np.testing.assert_allclose(ours, right, rtol=1e-6, atol=1e-6)
    assert np.any(ours != logits), "it changes something"


def test_of_several_next_tokens_each_has_a_history_of_its_own():
    tokens, _, _ = texts()
    logits = np.random.default_rng(1).normal(0, 3, [len(tokens), 5, SIZE]).astype(np.float32)
    start = jnp.arange(len(tokens)) % 8 + 1
    rule = Processed(Sampling(0.7), tuple(one for one, _ in PROCESSORS.values()))
    block = jnp.asarray(tokens[::-1, :4])
    history = History(jnp.asarray(tokens), start, STOP)
    probabilities = jax.jit(lambda logits, history: rule.probabilities(logits, history=history))
    at_once = probabilities(logits, history.ahead(block))
    for i in range(5):
        one = probabilities(logits[:, i], history)
        np.testing.assert_allclose(at_once[:, i], one, rtol=1e-5)  # softmax, vectorised otherwise
        if i < 4:
            history = history.append(block[:, i])


def test_a_history_is_rewound_by_its_length_and_drops_what_no_longer_fits():
    tokens = jnp.array([[0, 3, 4, 9, 9], [0, 9, 9, 9, 9]])
    history = History(tokens, jnp.array([3, 1]))
    longer = history.append(jnp.array([5, 6])).append(jnp.array([7, 8]))
    assert longer.tokens.tolist() == [[0, 3, 4, 5, 7], [0, 6, 8, 9, 9]]
    assert longer.length.tolist() == [5, 3]
    assert longer.append(jnp.array([2, 2])).tokens.tolist() == [[0, 3, 4, 5, 7], [0, 6, 8, 2, 9]]
    again = longer.replace(length=jnp.array([3, 2])).append(jnp.array([1, 1]))
    assert again.tokens.tolist() == [[0, 3, 4, 1, 7], [0, 6, 1, 9, 9]]


def test_processors_change_logits_one_after_the_other():
    """A penalty that is taken off before the rest is divided; what is not excluded stays."""
    history = History(jnp.array([[0, 3, 6, 6]]), jnp.array([2]), STOP)
    logits = jnp.array([[4.0, 1.0, 2.0, 5.0, 3.0, 0.0, 6.0]])
    both = (FrequencyPenalty(1.0), RepetitionPenalty(2.0), SuppressTokens((2,)))
    found = Processed(Greedy(), both).process(logits, history)
    assert found.tolist() == [[2, 1, NEVER, 2, 3, 0, 6]]


def test_another_sampling_is_put_behind_the_same_processors():
    rule = Processed(Greedy(), (MinLength(2),))
    assert instead(rule, Sampling(0.5)) == Processed(Sampling(0.5), (MinLength(2),))
    assert instead(Greedy(), Sampling(0.5)) == Sampling(0.5)
    assert unprocessed(rule) == unprocessed(Greedy()) == Greedy()


def test_where_nothing_is_left_the_text_ends():
    history = History(jnp.zeros([1, 4], jnp.int32), jnp.array([2]), STOP)
    logits = jnp.arange(SIZE, dtype=jnp.float32)[None]
    nothing = Processed(Sampling(), (SuppressTokens(tuple(range(SIZE))),))
    probs = nothing.probabilities(logits, history=history)
    assert probs[0].tolist() == [0, 0.5, 0, 0, 0, 0.5, 0]
    without_end = history.replace(stop_ids=())
    assert nothing.process(logits, without_end).tolist() == logits.tolist()


def test_without_a_history_it_refuses():
    rule = Processed(Greedy(), (NoRepeatNGram(2),))
    with pytest.raises(ValueError, match="looks back at the text and got no history; give one, or"):
        rule.probabilities(jnp.zeros([1, SIZE]))


MISTAKES = {
    "NoRepeatNGram.size is 0; give a positive": lambda: NoRepeatNGram(0),
    "RepetitionPenalty.penalty is -1; give a positive": lambda: RepetitionPenalty(-1),
    "FrequencyPenalty.penalty is 'x'; give a number": lambda: FrequencyPenalty("x"),  # type: ignore
    "PresencePenalty.penalty is nan; give a number": lambda: PresencePenalty(math.nan),
    r"NoBadWords.sequences is \(\); give sequences": lambda: NoBadWords(()),
    r"NoBadWords.sequences is \(\); give token ids": lambda: NoBadWords(((),)),
    "NoBadWords.sequences is 3; give token ids": lambda: NoBadWords((3,)),  # type: ignore
    r"SuppressTokens.tokens is \(-1,\); give token": lambda: SuppressTokens((-1,)),
    "SuppressTokensAtBegin.position is -1; give an": lambda: SuppressTokensAtBegin((3,), -1),
    r"ForcedTokens.tokens is \(True,\); give token": lambda: ForcedTokens((True,)),
    "ForcedEOS.length is 0; give a positive integer": lambda: ForcedEOS(0),
    "Opening.choices is 3; give token ids for each": lambda: Opening(3),  # type: ignore
    r"Opening.choices is \[\(3,\)\]; give token ids": lambda: Opening([(3,)]),  # type: ignore
    r"Opening.choices is \(\(3,\), \(\)\); give token": lambda: Opening(((3,), ())),
    r"Opening.choices is \(\(3,\), 4\); give token ids": lambda: Opening(((3,), 4)),  # type: ignore
    r"Opening.choices is \(\(3, -1\), \(4,\)\); give": lambda: Opening(((3, -1), (4,))),
    "MinLength.length is 0; give a positive integer": lambda: MinLength(0),
    "Processed.processors is 3; give processors": lambda: Processed(Greedy(), (3,)),  # type: ignore
    "Processed.sampling is 3; give Greedy": lambda: Processed(3, ()),  # type: ignore
    "is Processed itself; give all": lambda: Processed(Processed(Greedy(), ()), ()),
    "token 4 is in forced_prefix_ids and in suppress_tokens": lambda: in_order(
        forced_prefix_ids=(3, 4), suppress_tokens=(4,)
    ),
    "SuppressTokens names token 9 but the vocabulary has 9; give ids": lambda: check_ids(
        Processed(Greedy(), (SuppressTokens((3, 9)),)), 9
    ),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_is_one_line(message):
    with pytest.raises(ValueError, match=message):
        MISTAKES[message]()


def test_without_settings_there_is_nothing_in_the_way():
    assert in_order() == () and with_processors(Greedy(), in_order()) == Greedy()


def test_the_order_is_that_of_hugging_face():
    everything = in_order(
        repetition_penalty=1.2,
        frequency_penalty=0.1,
        presence_penalty=0.1,
        no_repeat_ngram_size=2,
        bad_words_ids=((3,),),
        min_length=2,
        forced_prefix_ids=(4, 5),
        forced_eos_length=9,
        suppress_tokens=(6,),
        begin_suppress_tokens=(7,),
        others=(NoRepeatNGram(7),),
    )
    assert [type(one).__name__ for one in everything] == [
        "RepetitionPenalty",
        "FrequencyPenalty",
        "PresencePenalty",
        "NoRepeatNGram",
        "NoBadWords",
        "MinLength",
        "ForcedTokens",
        "ForcedEOS",
        "SuppressTokens",
        "SuppressTokensAtBegin",
        "NoRepeatNGram",
    ]
    assert everything[9] == SuppressTokensAtBegin((7,), 2), "behind the forced prefix"


def test_a_score_is_of_what_is_drawn():
    target = TableTarget(6)
    params = target.init(jax.random.key(0))
    inputs, targets = jnp.ones([1, 1], jnp.int32), jnp.array([[3, 3, 3, 1]])
    given = {"target": target}
    raw = score(params, inputs, targets, **given)
    greedy = Processed(Greedy(), (NoRepeatNGram(2), MinLength(2)))
    left = score(params, inputs, targets, sampling=greedy, **given)
    assert np.isfinite(raw).all() and left[0, 2] == NEVER, "3 3 comes twice"
    assert left[0, 0] > raw[0, 0] and left[0, 3] > raw[0, 3], "without an end, and without a 3"
    drawn = score(params, inputs, targets, sampling=Sampling(0.5), **given)
    table = np.asarray(params["logits"], np.float64)[0, 0, 0] / 0.5
    np.testing.assert_allclose(drawn[0, 0], table[3] - np.log(np.exp(table).sum()), rtol=1e-5)


def of_huggingface(settings: dict) -> tuple:
    """The processors of settings of transformers' `generate`, for outputs of 20 tokens."""
    given = dict(settings)
    if "forced_eos_token_id" in given:
        given["forced_eos_length"] = given.pop("forced_eos_token_id") * 20
    if "forced_bos_token_id" in given:
        given["forced_prefix_ids"] = (given.pop("forced_bos_token_id"),)
    return in_order(min_length=given.pop("min_new_tokens", 0), **given)


@pytest.mark.ci
def test_each_token_is_the_one_that_hugging_face_chooses():
    """In 200 texts of a T5 for each setting, and for all of them together."""
    arrays, name = np.load(GOLDEN / "processors.npz"), "hf_v1_1"
    settings = json.loads(str(arrays["settings"]))[name]
    target = checkpoints.model_from(GOLDEN / name)
    params = checkpoints.load(GOLDEN / name, config=target.config)
    right = np.stack([arrays[f"{name}/{case}"] for case in settings]).astype(np.int32)
    fed = np.pad(right[:, :, :-1], ((0, 0), (0, 0), (1, 0)))
    inputs = np.tile(arrays[f"{name}/inputs"].astype(np.int32), (len(settings), 1))
    logits = teacher_forced(target, params, inputs, fed.reshape(-1, fed.shape[2]))
    logits = logits.reshape(*fed.shape, -1)
    assert "all" in settings and len(settings) == 12
    for i, given in enumerate(settings.values()):
        rule, text = Processed(Greedy(), of_huggingface(given)), jnp.asarray(fed[i])
        left, _ = standardised(rule, logits[i], *before_each(text, (1,), None))
        ended = np.cumsum(fed[i] == 1, axis=1) > 0
        assert np.array_equal(left.argmax(-1)[~ended], right[i][~ended]), given
