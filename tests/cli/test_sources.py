"""Where texts come from and where they go: pytest tests/cli/test_sources.py"""

import io
import json

import jax
import numpy as np
import pytest

from specdec import checkpoints, cli, tasks
from specdec.cli import sinks
from specdec.common.decoded import DecodedText
from specdec.common.values import UsageError
from specdec.models.families import model_of
from specdec.models.gpt2 import Gpt2Config
from specdec.models.partitioning import Share
from specdec.texts.sources import Live, RevisedTexts, Source
from specdec.texts.texts import Data, Previous, TextList, TextStream

POSITIONS, OUTPUTS = 40, 8
SIZES = Gpt2Config(
    vocab_size=261,
    emb_dim=16,
    num_heads=4,
    num_kv_heads=4,
    head_dim=4,
    mlp_dim=20,
    num_decoder_layers=2,
    pad_id=0,
    stop_ids=(1,),
    context=POSITIONS,
)
TEXTS = "a cat sat", "a cat sat on a mat and slept"
LENGTHS = {"inputs": 64, "targets": OUTPUTS}


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    """The checkpoint of a decoder that has 40 positions."""
    path = tmp_path_factory.mktemp("decoder") / "target"
    checkpoints.save(path, model_of(SIZES).init(jax.random.key(0)), config=SIZES)
    return path


@pytest.fixture
def decode(decoder, cache, capsys):
    """Runs `specdec decode` on the decoder; returns the exit code, stdout and stderr."""

    def run(*flags):
        capsys.readouterr()
        sizes = f"--target={decoder}", "--vocabulary=bytes", f"--max_length={OUTPUTS}"
        code = cli.main(["decode", f"--compilation_cache_dir={cache}", *sizes, *flags])
        return code, *capsys.readouterr()

    return run


def test_a_pipe_takes_what_a_file_takes(decode, monkeypatch, tmp_path):
    """The model has 40 positions, and without a length of inputs 512 are assumed."""
    lines = "".join(f"{text}\n" for text in TEXTS)
    (tmp_path / "texts.txt").write_text(lines)
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    piped, given = decode(), decode(f"--input_file={tmp_path / 'texts.txt'}")
    assert piped[:2] == given[:2] and piped[0] == 0 and len(piped[1].splitlines()) == len(TEXTS)


def test_a_text_that_is_too_long_for_the_model_is_refused_alike(decode, monkeypatch, tmp_path):
    """Positions that outputs need are not there for inputs."""
    text = "a" * (POSITIONS - OUTPUTS)  # and EOS
    (tmp_path / "texts.txt").write_text(f"{text}\n")
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{text}\n"))
    said = decode(), decode(f"--input_file={tmp_path / 'texts.txt'}")
    for code, _, err in said:
        (line,) = (line for line in err.splitlines() if line.startswith("specdec: "))
        assert code == 2 and "text 1 is 33 tokens long" in line and "inputs hold 32; give" in line
    assert decode(f"--text={text[1:]}")[0] == 0


def data(texts, **fields) -> Data:
    return Data(None, "", LENGTHS, texts, **fields)


def source(data: Data) -> Source:
    return data.source(Share(0, 1), vocabulary=tasks.for_texts(tasks.Bytes(0)))


def test_a_stream_reads_no_further_than_it_is_asked():
    read = []

    def pairs():
        for text in "abc":
            read.append(text)
            yield text, None

    stream = TextStream(pairs())
    assert (stream.first, read) == ("a", ["a"])
    found = source(data(stream))
    assert found.length() is None and read == ["a"]
    assert [batch.input_texts for batch in found] == [["a"], ["b"], ["c"]]


def test_given_texts_are_known_at_once():
    texts = TextList([("a", None), ("ab" * 5, None), ("a" * 64, None)])
    with pytest.raises(tasks.TaskError, match="text 3 is 65 tokens long"):
        source(data(texts))
    found = source(data(texts, limit=2, buckets=(4, 16)))
    assert found.length() == 4
    assert [batch.ids.shape[1] for batch in found] == [4, 16]


@pytest.mark.parametrize(
    "room, width, buckets", [(None, 64, (8, 16)), (16, 16, (8,)), (0, 64, (8, 16))]
)
def test_given_texts_are_as_long_as_models_have_room_for(room, width, buckets):
    found = data(TextStream(()), buckets=(8, 16)).within(room)
    assert (found.lengths, found.buckets) == ({**LENGTHS, "inputs": width}, buckets)
    assert data(None, buckets=(8, 16)).within(room).lengths == LENGTHS  # a task's are trimmed


def test_previous_outputs_go_with_their_texts():
    texts, vocabulary = TextList([("a", None), ("b", None)]), tasks.for_texts(tasks.Bytes(0))
    previous = Previous("--previous x", ["ab", (), (7, 8)])
    ids = previous.ids(vocabulary)
    assert list(map(list, ids)) == [[*vocabulary.encode("ab"), 1], [], [7, 8]]
    found = RevisedTexts(source(data(texts)), ids, 2, previous.name)
    rows = [batch.previous for batch in found]
    np.testing.assert_array_equal(rows, [[vocabulary.encode("ab")], [[0, 0]]])
    with pytest.raises(UsageError, match="--previous x has 1 outputs, and there is a text 2; give"):
        list(RevisedTexts(source(data(texts)), ids[:1], 2, previous.name))


def test_a_live_text_is_drafted_from_the_answer_before_it():
    found = Live(source(data(TextStream([("a", None), ("ab", None)]))), 3)
    batches = iter(found)
    np.testing.assert_array_equal(next(batches).previous, [[0, 0, 0]])
    found.answered(DecodedText(tokens=[5, 6], drafted=[], accepted=[]))
    np.testing.assert_array_equal(next(batches).previous, [[5, 6, 0]])


class Counted(sinks.Sink):
    """A sink of a user: the number of texts, at the end."""

    def __init__(self, path):
        self._path, self._count = path, 0

    @staticmethod
    def add_flags(parser):
        parser.add_argument("--count_file")

    @classmethod
    def of(cls, args, run):
        return cls(args.count_file) if args.count_file else None

    def write(self, text):
        self._count += len(text.prediction) > 0

    def close(self):
        with open(self._path, "w") as file:
            json.dump(self._count, file)


def test_another_sink_is_a_class_and_its_name(decode, monkeypatch, tmp_path):
    monkeypatch.setattr(sinks, "OUTPUTS", (*sinks.OUTPUTS, Counted))
    path = tmp_path / "count.json"
    code, out, _ = decode(f"--count_file={path}", *(f"--text={text}" for text in TEXTS))
    assert code == 0 and len(out.splitlines()) == len(TEXTS)
    assert json.loads(path.read_text()) == sum(bool(line) for line in out.splitlines())
