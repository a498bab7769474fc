"""What drafters without a model propose, call by call, against plain Python that knows the whole
text: pytest tests/drafters/test_lookups.py"""

from __future__ import annotations

import collections
import fractions
import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import PromptTable, context_of

from specdec.checkpoints import tables
from specdec.decoding import decode, row_keys
from specdec.drafters import (
    Autoregressive,
    Committee,
    Hybrid,
    InputCopy,
    NGram,
    PromptLookup,
    Retrieval,
    SuffixDecoding,
)
from specdec.drafters.committee import _mean, _votes
from specdec.drafters.matching import last_tokens, matches, slices
from specdec.plan import Plan
from specdec.predict.schedule_replay import Recorded
from specdec.sampling import Greedy
from specdec.schedules import Fixed
from specdec.types import Context, Params, Request
from specdec.verifiers import GreedyMatch

V, S, N, ROWS = 12, 14, 20, 24
PREFIX = (7, 8)


def texts():
    """Sources, outputs that copy much of them, and texts of a store; ids 2 .. V - 1, EOS 1."""
    rng = np.random.default_rng(0)
    sources, outputs = [], []
    for row in range(ROWS):
        source = rng.integers(2, 6, rng.integers(3, S - 3)).tolist()
        output = list(source)
        for _ in range(rng.integers(0, 4)):
            output[rng.integers(len(output))] = int(rng.integers(2, V))
        if row % 3 == 0:
            output = output[: len(output) // 2] + output  # repeats itself
        sources.append([*(PREFIX if row % 4 else ()), *source, 1])
        outputs.append([*output[: N - 1 - row % 2], 1])
    outputs[1] = outputs[1][:-1] + [3] * (N - len(outputs[1]) + 1)  # does not end
    store = [[0, *rng.integers(2, 6, rng.integers(2, 9)), 1] for _ in range(30)]
    return sources, outputs, [*store, [0, *outputs[5]]]


SOURCES, OUTPUTS, STORE = texts()


# Plain Python: what is proposed for a source and an output so far.


def looked_up(source, output, longest=4, shortest=1):
    for size in range(min(longest, len(output)), shortest - 1, -1):
        end = output[-size:]
        for text, periodic in ((output, True), (source, False)):
            places = [j for j in range(size, len(text)) if text[j - size : j] == end]
            if places:
                rest = text[places[-1] :]
                return rest * N if periodic else rest
    return []


def gone_on(source, output, longest=3, factor=3, least=0.5):
    """By what all places with the longest match go on with."""
    for size in range(min(longest, len(output)), 0, -1):
        end = output[-size:]
        places = [
            text[j:]
            for text in (source, output)
            for j in range(size, len(text))
            if text[j - size : j] == end
        ]
        if not places:
            continue
        draft, probability = [], 1
        while len(draft) < factor * size and any(places):
            votes = collections.Counter(rest[0] for rest in places if rest)
            most = max(votes.values())
            token = [x[0] for x in places if x and votes[x[0]] == most][-1]
            probability *= fractions.Fraction(most, len(places))
            if probability < least:
                break
            draft.append(token)
            places = [rest[1:] for rest in places if rest and rest[0] == token]
        return draft
    return []


def copied(source, output, prefix=PREFIX):
    first = len(prefix) if tuple(source[: len(prefix)]) == prefix else 0
    pointer = first
    for at, token in enumerate(output):
        if pointer is not None and pointer < len(source) and source[pointer] == token:
            pointer += 1
            continue
        pointer = None
        for size in (1, 2, 3):
            end = output[max(at + 1 - size, 0) : at + 1]
            found = [j for j in range(first + size, len(source) + 1) if source[j - size : j] == end]
            if len(end) < size or len(found) != 1:
                if not found or len(end) < size:
                    break
                continue
            pointer = found[0]
            break
    return [] if pointer is None else source[pointer:]


@functools.cache
def counted(order):
    following = collections.defaultdict(collections.Counter)
    for text in STORE:
        for at in range(1, len(text)):
            for size in range(min(order, at + 1)):
                following[tuple(text[at - size : at])][int(text[at])] += 1
    return following


def witten_bell(context, token, order):
    counts = counted(order)[context]
    lower = 1 / V if not context else witten_bell(context[1:], token, order)
    if not counts:
        return lower
    return (counts[token] + len(counts) * lower) / (counts.total() + len(counts))


def chained(source, output, order):
    text = [0, *output]
    for _ in range(N):
        context = tuple(text[len(text) - order + 1 :]) if order > 1 else ()
        text.append(max(range(V), key=lambda x: witten_bell(context[-order:], x, order)))
    return text[1 + len(output) :]


def retrieved(source, output, longest=8):
    tokens = [int(token) for text in STORE for token in text]
    places = [at for at in range(1, len(tokens)) if tokens[at] != 0]
    places.sort(key=lambda at: (tokens[:at][::-1][:64], at))
    text = [0, *output]

    def common(at):
        size = 0
        while size < min(longest, len(text), at) and tokens[at - 1 - size] == text[-1 - size]:
            size += 1
        return size

    deepest = max(map(common, places))
    voters, proposed = [at for at in places if common(at) == deepest], []
    for depth in range(N if deepest else 0):
        column = [tokens[min(at + depth, len(tokens) - 1)] for at in voters]
        votes = collections.Counter(column)
        proposed.append(max(column, key=lambda token: votes[token]))
        voters = [at for at, said in zip(voters, column, strict=True) if said == proposed[-1]]
    return proposed


def simulated(propose, gamma):
    """Of each text, what each call drafted and accepted."""
    found = []
    for source, output in zip(SOURCES, OUTPUTS, strict=True):
        calls, at = [], 0
        while at < len(output):
            draft = propose(source, output[:at])[: min(gamma, N - at - 1)]
            if 1 in draft:
                draft = draft[: draft.index(1) + 1]
            rest = output[at:]
            pairs = zip(draft, rest, strict=False)
            same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(draft), len(rest)))
            calls.append((len(draft), same))
            at += same + (output[at + same - 1 : at + same] != [1] or not same)
        found.append(calls)
    return found


# The engine's own loop, with a recording of the texts as the target.


def filled(rows, width):
    block = np.zeros([len(rows), width], np.int32)
    for row, tokens in zip(block, rows, strict=True):
        row[: len(tokens)] = tokens
    return jnp.asarray(block)


def decoded(drafter, trees, gamma):
    plan = Plan(Recorded(V), drafter, GreedyMatch(), Fixed(gamma), Greedy(), N, (1,))
    trees = {"target": {"tokens": filled(OUTPUTS, N)}, **trees}
    keys = row_keys(0, jnp.arange(ROWS))
    output = jax.device_get(decode(plan.params(trees), keys, filled(SOURCES, S), plan))
    for row, text in enumerate(OUTPUTS):
        assert output.tokens[row, : len(text)].tolist() == text
    return output


def calls_of(output):
    rows = (output.row(row) for row in range(ROWS))
    return [list(zip(row.drafted, row.accepted, strict=True)) for row in rows]


@functools.cache
def table(kind):
    arrays = tables.count(STORE, V) if kind == "ngram" else tables.store(STORE)
    return {name: jnp.asarray(array) for name, array in arrays.items()}


CASES = {
    "prompt lookup": (PromptLookup(), {}, looked_up),
    "prompt lookup, two tokens": (
        PromptLookup(longest=3, shortest=2),
        {},
        functools.partial(looked_up, longest=3, shortest=2),
    ),
    "suffix decoding": (SuffixDecoding(longest=3), {}, gone_on),
    "suffix decoding, of any probability": (
        SuffixDecoding(longest=2, factor=2, least=0),
        {},
        functools.partial(gone_on, longest=2, factor=2, least=0),
    ),
    "input copy": (InputCopy(PREFIX), {}, copied),
    "unigram": (NGram(1, Greedy()), {"table": "ngram"}, functools.partial(chained, order=1)),
    "bigram": (NGram(2, Greedy()), {"table": "ngram"}, functools.partial(chained, order=2)),
    "trigram": (NGram(3, Greedy()), {"table": "ngram"}, functools.partial(chained, order=3)),
    "retrieval": (Retrieval(), {"store": "store"}, retrieved),
}


@pytest.mark.parametrize(
    "name, gamma",
    [*((name, 3) for name in CASES), ("prompt lookup", 1), ("prompt lookup", 8)],
)
def test_calls_are_those_of_plain_python(name, gamma):
    drafter, kinds, propose = CASES[name]
    output = decoded(drafter, {role: table(kind) for role, kind in kinds.items()}, gamma)
    assert calls_of(output) == simulated(propose, gamma)


@pytest.mark.parametrize(
    "tokens, last, counts, found",
    [
        ([5, 6, 7], [6, 5, -1, -1], [1, 1, 1], [0, 2, 0]),  # before the start is nothing
        ([5, 6, 5, 6], [6, 5, 6, 5], [1, 1, 1, 1], [0, 2, 0, 4]),
        ([5, 6, 5, 6], [6, 5, 6, 5], [0, 1, 1, 1], [0, 1, 0, 3]),
        ([5, 6, 5, 6], [6, 5], [1, 1, 1, 0], [0, 2, 0, 0]),
    ],
)
def test_as_many_tokens_match_as_are_the_same(tokens, last, counts, found):
    """Counts matches up to each place, as far back as all tokens count."""
    given = (jnp.array([x]) for x in (tokens, last))
    assert matches(*given, jnp.array([counts], bool)).tolist() == [found]


def test_the_end_of_a_text():
    context = context_of([[0, 5, 6, 7], [0, 5, 9, 9]], [4, 2])
    assert last_tokens(context, 3).tolist() == [[7, 6, 5], [5, 0, -1]]
    assert slices(context.tokens, jnp.array([1, 3]), 3).tolist() == [[5, 6, 7], [9, 9, 9]]


def test_the_end_of_a_prompt_comes_before_the_output():
    """Tables, too, are asked for what follows it."""
    inputs = jnp.array([[2, 3, 4, 5], [6, 7, 0, 0]])
    context = context_of([[5, 8], [7, 9]], [2, 1], inputs=inputs, target=PromptTable(V))
    assert last_tokens(context, 3).tolist() == [[8, 5, 4], [7, 6, -1]]


def proposed(drafter, source, output, trees=(), pad_id=0, target=None) -> list[int]:
    """Returns up to six tokens behind an output, which has room for more."""
    # Blocks of one width, whatever they hold, so that cases share their programs.
    block = np.pad(source, (0, max(9 - len(source), 0)), constant_values=pad_id)
    inputs = jnp.asarray(block[None], jnp.int32)
    start = 0 if target is None else int(target.start(inputs)[0])
    room = np.pad([start, *output], (0, 6 - len(output)), constant_values=11)
    more = {"inputs": inputs, "vocab_size": V, "pad_id": pad_id, "target": target}
    context = context_of([room], [1 + len(output)], **more)
    params = Params((), **dict.fromkeys(drafter.owned(), trees))
    state = drafter.init(params, context)
    request = Request(context, jnp.zeros([1, 6]), jnp.array([6]))
    draft, _ = drafter.propose(params, request, state)
    return draft.tokens[0, : int(draft.length[0])].tolist()


@pytest.mark.parametrize(
    "drafter, output, tokens",
    [
        (PromptLookup(), [3], [0, 5]),
        (SuffixDecoding(), [3], [0, 5]),
        (InputCopy(), [], [3, 0, 5]),
        (InputCopy(), [7, 0], [5]),
    ],
    ids=str,
)
def test_padding_is_what_the_target_says(drafter, output, tokens):
    assert proposed(drafter, [3, 0, 5, 9, 9], output, pad_id=9) == tokens


@pytest.mark.parametrize(
    "drafter, source, output, tokens",
    [
        (PromptLookup(source=False), [5, 6], [5], []),
        (PromptLookup(source=False), [5, 6], [5, 7, 5], [7, 5, 7, 5, 7, 5]),
        (PromptLookup(output=False), [5, 6, 8], [5, 7, 5], [6, 8]),
        (PromptLookup(), [5, 6, 8], [5, 7, 5], [7, 5, 7, 5, 7, 5]),  # the output goes first
        (PromptLookup(), [7, 5, 6, 8], [5, 7, 5], [6, 8]),  # but the longer match before it
        (PromptLookup(shortest=2), [5, 6, 8], [7, 5], []),
        (PromptLookup(shortest=2), [7, 5, 6, 8], [7, 5], [6, 8]),
        (PromptLookup(longest=1), [7, 5, 6, 5, 8], [7, 5], [8]),
        (PromptLookup(), [2, 3, 2, 3, 2, 3, 2, 6, 5], [5], []),  # nothing follows
        (InputCopy(prefix=(7, 8)), [7, 8, 3, 4], [], [3, 4]),
        (InputCopy(prefix=(7, 8)), [7, 3, 4, 8], [], [7, 3, 4, 8]),
        (InputCopy(prefix=(7, 8)), [7, 8], [], []),
        (InputCopy(prefix=(7, 8)), [7], [], [7]),
        (InputCopy(prefix=(7, 8)), [7, 8, 3, 7, 4], [7], [4]),  # the prefix is no place
        (InputCopy(prefix=(7, 8)), [7, 8, 3, 4], [9, 3], [4]),  # the first token behind it is
        (InputCopy(longest=1), [2, 4, 3, 4, 5, 3, 5], [4, 3], []),
        (InputCopy(longest=2), [2, 4, 3, 4, 5, 3, 5], [4, 3], [4, 5, 3, 5]),
        (InputCopy(), [3, 4, 3, 4, 5], [3, 4], [3, 4, 5]),  # from the beginning on, word by word
        (InputCopy(), [2, 4, 3, 4, 3], [4, 3], []),  # in several places at every length
    ],
    ids=str,
)
def test_what_is_copied_from_where(drafter, source, output, tokens):
    assert proposed(drafter, source, output) == tokens


@pytest.mark.parametrize(
    "drafter, prompt, output, tokens",
    [
        # 5 6 is followed by 7; 6 alone is followed by 8 as well.
        (PromptLookup(), [5, 6, 7, 9, 6, 8, 5, 6], [], [7, 9, 6, 8, 5, 6]),
        (PromptLookup(shortest=2), [5, 6, 7, 4, 5, 6, 0, 0], [], [7, 4, 5, 6, 7, 4]),
        (PromptLookup(shortest=3), [5, 6, 7, 4, 5, 6, 0, 0], [7], [4, 5, 6, 7, 4, 5]),
        (PromptLookup(output=False), [5, 6, 7, 4, 5, 6, 0, 0], [7], [4, 5, 6, 7, 4, 5]),
        (PromptLookup(source=False), [5, 6, 7, 4, 5, 6, 0, 0], [7], []),
        (PromptLookup(source=False), [5, 6, 7, 4, 5, 6, 0, 0], [7, 2, 7], [2, 7, 2, 7, 2, 7]),
        (SuffixDecoding(), [5, 6, 7, 9, 6, 8, 5, 6], [], [7, 9, 6, 8, 5, 6]),
        (SuffixDecoding(), [5, 6, 7, 4, 5, 6, 0, 0], [7], [4, 5, 6, 7]),
        (InputCopy(), [5, 6, 7, 9, 6, 8, 6, 5, 6], [8], [6, 5, 6]),
        (InputCopy(), [5, 6, 7, 2, 4, 7, 3, 5, 6, 0], [7], [2, 4, 7, 3, 5, 6]),
    ],
    ids=str,
)
def test_a_decoder_only_model_goes_on_with_its_prompt(drafter, prompt, output, tokens):
    assert proposed(drafter, prompt, output, target=PromptTable(V)) == tokens


def test_a_recording_of_a_decoder_only_model_has_its_prompts():
    inputs = jnp.array([[5, 6, 0]])
    recorded, none = Recorded(V, PromptTable(V)), Recorded(V)
    assert recorded.prompt(inputs).length.tolist() == [2]
    assert none.prompt(inputs) is None

    class PadsWithNine(PromptTable):
        pad_id = 9

    assert (Recorded(V, PadsWithNine(V)).pad_id, none.pad_id) == (9, 0)


@pytest.mark.parametrize("drafter", [PromptLookup(), SuffixDecoding(), InputCopy()], ids=str)
@pytest.mark.parametrize(
    "inputs, are",
    [
        (np.ones([1, 3], np.float32), "float32[1, 3]"),
        (np.ones([1, 3, 2], int), "int64[1, 3, 2]"),
        ({"tokens": np.ones([1, 3])}, "dict"),
    ],
)
def test_only_token_ids_are_copied(drafter, inputs, are):
    context = context_of([[0, 5]], inputs=inputs, vocab_size=V)
    with pytest.raises(ValueError, match=re.escape(f"inputs, which are {are}; it needs token ids")):
        drafter.init(Params(()), context)


@pytest.mark.ci
def test_a_store_is_asked_from_a_number_of_tokens_on():
    store = {k: jnp.asarray(x) for k, x in tables.store([[0, 3, 4, 5, 6, 7, 1]]).items()}
    for shortest, tokens in ((1, [7, 1]), (2, [7, 1]), (3, [])):
        found = proposed(Retrieval(shortest=shortest), [2], [9, 5, 6], store)
        assert found[:2] == tokens
    assert proposed(Retrieval(), [2], [9], store) == []


def test_a_table_of_shorter_ngrams_is_refused():
    table = {name: jnp.asarray(x) for name, x in tables.count(STORE, V, order=2).items()}
    with pytest.raises(ValueError, match="has n-grams up to 2 and NGram.order is 3"):
        proposed(NGram(3, Greedy()), [2], [3], table)
    assert len(proposed(NGram(2, Greedy()), [2], [3], table)) == 6


def test_a_committee_has_the_mean_of_its_members_weighted_votes():
    """One with fewer ids has no vote for those that it lacks."""
    votes = [jnp.log(jnp.array([[0.5, 0.3, 0.2]])), jnp.log(jnp.array([[0.1, 0.9]]))]
    members = NGram(1, Greedy()), Autoregressive(Recorded(V), Greedy())
    for weights, shares in ((None, [0.3, 0.6, 0.1]), ((3.0, 1.0), [0.4, 0.45, 0.15])):
        fixed = Committee(members, Greedy(), weights)._weights(None)
        mean = _mean(fixed, _votes(votes, 3))
        np.testing.assert_allclose(np.exp(mean), [shares], rtol=1e-6)


def largest(jaxpr):
    """The numbers in the largest array that a program makes."""
    sizes = [math.prod(variable.aval.shape) for e in jaxpr.eqns for variable in e.outvars]
    values = jax.tree.leaves([list(e.params.values()) for e in jaxpr.eqns])
    inside = [getattr(value, "jaxpr", value) for value in values]
    return max([*sizes, *(largest(one) for one in inside if hasattr(one, "eqns"))], default=0)


@pytest.mark.parametrize("drafter", [PromptLookup(), SuffixDecoding(), InputCopy()], ids=str)
def test_no_array_grows_faster_than_the_text(drafter):
    """Twice the text, twice the numbers: comparing each token with each other one takes seconds."""

    def size(length):
        def propose(inputs, tokens):
            context = Context(
                tokens=tokens,
                length=jnp.full([1], 9, jnp.int32),
                inputs=inputs,
                cache=None,
                hidden=None,
                active=jnp.ones([1], bool),
                vocab_size=V,
            )
            request = Request(context, row_keys(0, jnp.arange(8))[None], jnp.full([1], 8))
            state = drafter.init(Params(()), context)
            return drafter.propose(Params(()), request, state)[0]

        shapes = (jax.ShapeDtypeStruct((1, x), jnp.int32) for x in (length, length // 2))
        return largest(jax.make_jaxpr(propose)(*shapes).jaxpr)

    assert size(2048) < 2.2 * size(1024) < 2.2 * 2.2 * size(512)


def test_the_places_that_are_asked_are_spread_over_all():
    """Of 16 behind the token 2, sorted by what is before it, every fourth; the others disagree."""
    texts = [[0, before, 2, 20 if before % 4 == 3 else 21, 1] for before in range(3, 19)]
    store = [jnp.asarray(tables.store(texts)[name]) for name in ("tokens", "order")]
    last = jnp.array([2, 30])  # the nearest first; 30 is nowhere
    chosen, found = Retrieval(longest=2, candidates=4)._continuation(*store, last, 1)
    assert bool(found) and chosen.tolist() == [20]
    chosen, _ = Retrieval(longest=2)._continuation(*store, last, 1)
    assert chosen.tolist() == [21]


def test_a_hybrid_asks_the_model_where_nothing_is_copied():
    rng = np.random.default_rng(1)
    said = [[x if rng.random() < 0.7 else 2 for x in text] for text in OUTPUTS]  # 2 or right
    said = [[*text, *[0] * (N - len(text))] for text in said]

    def propose(source, output):
        row = SOURCES.index(source)
        return looked_up(source, output, shortest=2) or said[row][len(output) :]

    drafter = Hybrid(PromptLookup(shortest=2), Autoregressive(Recorded(V), Greedy()))
    output = decoded(drafter, {"draft": {"tokens": filled(said, N)}}, 4)
    assert calls_of(output) == simulated(propose, 4)
    for row, text in enumerate(OUTPUTS):
        at = np.cumsum([0, *(accepted + 1 for _, accepted in calls_of(output)[row])])
        asked = [not looked_up(SOURCES[row], text[:i], shortest=2) for i in at[:-1]]
        known = [i for i, drafted in enumerate(output.row(row).drafted) if drafted]
        assert [output.row(row).sources[i] for i in known] == [int(asked[i]) for i in known]
