"""Vocabularies without seqio give seqio's ids and texts: pytest tests/tasks/test_plain.py"""

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from specdec import tasks
from specdec.common import demo

MODEL = demo.path("vocabulary.model")
GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "tokenizer" / "tokenizer.json"
DEFINITIONS = {
    "sentencepiece": tasks.SentencePiece(MODEL),
    "with sentinels": tasks.SentencePiece(MODEL, extra_ids=100),
    "tokenizer.json": tasks.TokenizerJson(str(GOLDEN)),
    "bytes": tasks.Bytes(),
    "bytes with sentinels": tasks.Bytes(extra_ids=125),
}
HOSTILE = (
    "",
    "  two  spaces \ttab\nline\x00",
    "a </s> b<pad></s> <unk> <s>",
    "Ａ ﬁ ① e\u0301 \u200b \u00a0 😀 漢字 ⁇",
    "<extra_id_0> a <extra_id_99>b c<extra_id_3> ▁<extra_id_1>",
)


@pytest.fixture(params=DEFINITIONS)
def definition(request):
    return DEFINITIONS[request.param]


def test_ids_and_texts_are_seqios(definition):
    plain, theirs = definition.plain(), definition.load()
    pairs = tasks.synthetic_task("specdec_ende").source("test", 0)
    article = next(tasks.synthetic_task("specdec_highlights").source("test", 0))
    lines = [*itertools.chain(*itertools.islice(pairs, 100)), *article, *HOSTILE]
    assert [plain.encode(line) for line in lines] == [list(theirs.encode(line)) for line in lines]
    draw = np.random.default_rng(0)
    for end in (plain.vocab_size, plain.vocab_size + 500):  # a model may have ids of its own
        for ids in draw.integers(0, end, [300, 12]).tolist():
            assert plain.decode(ids) == theirs.decode(ids)
            assert plain.decode(np.array([*ids, 1, 5])) == theirs.decode([*ids, 1, 5])


def test_attributes_are_seqios(definition):
    plain, theirs = definition.plain(), definition.load()
    for name in ("pad_id", "eos_id", "unk_id", "vocab_size", "extra_ids"):
        assert getattr(plain, name) == getattr(theirs, name), name
    assert tasks.digest(plain) == tasks.digest(theirs)
    assert tasks.file_of(plain) == tasks.file_of(theirs)
    assert tasks.same_vocabulary(plain, theirs) and tasks.same_vocabulary(theirs, plain)


def test_others_are_told_apart(definition):
    for other in DEFINITIONS.values():
        if other != definition and tasks.TokenizerJson not in map(type, (other, definition)):
            assert not tasks.same_vocabulary(definition.plain(), other.plain())
            assert not tasks.same_vocabulary(definition.plain(), other.load())
            assert definition.plain() != other.plain()


def test_texts_and_checkpoints_import_no_large_library():
    code = (
        "import sys, specdec.checkpoints; "
        "from specdec.tasks import Bytes, SentencePiece, TokenizerJson; "
        f"found = [d.plain() for d in {list(DEFINITIONS.values())!r}]; "
        "[one.decode(one.encode('Ei')) for one in found]; "
        "print([name for name in ('tensorflow', 'seqio', 'tensorstore', 'orbax') "
        "if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_definition_of_ones_own_may_have_seqios_alone():
    class Own:
        def load(self):
            return "seqio's"

    assert tasks.for_texts(Own()) == "seqio's"  # type: ignore[arg-type]
    assert tasks.for_texts(tasks.Bytes()) == tasks.Bytes().plain()
