"""Tables: what is counted and stored, files, and the command that makes them:
pytest tests/tables/test_tables.py"""

from __future__ import annotations

import itertools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec import cli, tasks
from specdec.checkpoints import tables
from specdec.checkpoints.tables import TableError, ngrams
from specdec.common import demo
from specdec.drafters import NGram
from specdec.engine import Placement
from specdec.sampling import Greedy
from specdec.types import Params, Table

TEXTS = [[0, *text, 1] for text in np.random.default_rng(0).integers(2, 9, [60, 7]).tolist()]
V = 10
RUN = ["--gin_file=demo.gin", "--gin.BATCH_SIZE=4"]


@pytest.mark.parametrize("kept", [ngrams.SUCCESSORS, 2])
def test_every_distribution_is_one(monkeypatch, kept):
    monkeypatch.setattr(ngrams, "SUCCESSORS", kept)
    table = {name: jnp.asarray(x) for name, x in tables.count(TEXTS, V).items()}
    assert table["next_2"].shape[1] == min(kept, 8)
    last = jnp.array([[a, b] for a, b in itertools.product(range(-1, V), range(-1, V))])
    q = NGram(3, Greedy())._probabilities(table, last)
    np.testing.assert_allclose(q.sum(axis=1), 1, atol=1e-6)  # float32 sums of V numbers
    assert bool((q > 0).all())


def test_counts_of_a_text_that_is_known():
    table = tables.count([[0, 5, 6, 5, 7, 1]], 8, 2)
    following = dict(zip(table["context_2"][:, 0].tolist(), table["next_2"].tolist(), strict=True))
    assert following == {0: [5, 0], 5: [6, 7], 6: [5, 0], 7: [1, 0]}
    shares = dict(zip(table["context_2"][:, 0].tolist(), table["share_2"].tolist(), strict=True))
    assert shares[5] == [0.25, 0.25] and shares[6] == [0.5, 0]  # 1 / (2 + 2), 1 / (1 + 1)
    types, total = 4, 5
    assert table["unigram"][5] == np.float32((2 + types / 8) / (total + types))


def test_a_store_is_sorted_by_what_is_before():
    found = tables.store(TEXTS)
    tokens, order = found["tokens"].tolist(), found["order"].tolist()
    before = [tokens[:place][::-1][: tables.stores.DEPTH] for place in order]
    assert before == sorted(before)
    assert sorted(order) == [at for at, token in enumerate(tokens) if token != 0]
    order = tables.store([[0, *[5, 3] * 500]])["order"]
    for parity in (0, 1):  # places with equal tokens before them stay in order
        same = order[(order % 2 == parity) & (order > 2 * tables.stores.DEPTH)]
        assert (np.diff(same) > 0).all()


@pytest.mark.parametrize("texts, message", [([], "no token"), ([[0, 3], [0, 12]], "the id 12")])
def test_what_cannot_be_counted_is_refused(texts, message):
    with pytest.raises(ValueError, match=f"have {message}; give texts of a vocabulary of 10"):
        tables.count(texts, V)


def test_a_store_of_nothing_is_refused():
    with pytest.raises(ValueError, match="there is no text to store"):
        tables.store([[0]])


@pytest.fixture
def saved(tmp_path):
    tables.save(tmp_path / "t", "store", tables.store(TEXTS), tasks.demo_vocabulary().plain())
    return tmp_path / "t"


STORE = Table("store")


def test_a_table_is_read_as_it_was_saved(saved):
    found, shapes = tables.load(saved, STORE), tables.shapes(saved, STORE)
    for name, array in tables.store(TEXTS).items():
        np.testing.assert_array_equal(found[name], array)
        assert (shapes[name].shape, shapes[name].dtype) == (array.shape, array.dtype)
    tables.check_vocabulary(saved, STORE, tasks.demo_vocabulary().plain())


def test_a_full_disk_is_named(tmp_path, small_files):
    with small_files(), pytest.raises(OSError) as caught:
        tables.save(tmp_path / "table", "ngrams", {"counts": np.arange(1000)})
    assert caught.value.filename == str(tmp_path / "table") and not list(tmp_path.iterdir())


def test_a_byte_that_changed_is_seen(saved):
    before = tables.fingerprint(saved, STORE)
    assert re.fullmatch("[0-9a-f]{16}", before)
    data = bytearray((saved / "tokens.npy").read_bytes())
    data[-3] ^= 1
    (saved / "tokens.npy").write_bytes(data)
    with pytest.raises(TableError, match="tokens has the checksum .* make the table again"):
        tables.load(saved, STORE)
    tables.load(saved, STORE, checksums=False)
    with pytest.raises(TableError, match="tokens has the checksum .* make the table again"):
        Placement().read(STORE, str(saved))
    Placement(checksums=False).read(STORE, str(saved))
    record = json.loads((saved / "table.json").read_text())
    record["arrays"]["tokens"]["crc32"] = "0" * 8
    (saved / "table.json").write_text(json.dumps(record))
    assert tables.fingerprint(saved, STORE) != before


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda path: (path / "table.json").unlink(), "is no table .* --table=store"),
        (lambda path: (path / "table.json").write_text("{"), "is not JSON"),
        (
            lambda path: (path / "table.json").write_text("[]"),
            "is no such JSON object: expected object, got array",
        ),
        (lambda path: (path / "order.npy").unlink(), "cannot read .*order.npy"),
        (lambda path: (path / "order.npy").write_bytes(b"x"), "cannot read .*order.npy"),
        (lambda path: np.save(path / "order.npy", np.zeros(3)), r"is float64\[3\] and"),
    ],
)
def test_a_damaged_table_is_one_line(saved, damage, message):
    damage(saved)
    with pytest.raises(TableError, match=message) as raised:
        tables.load(saved, STORE)
    assert "\n" not in str(raised.value)


def test_a_table_of_something_else_is_refused(saved):
    with pytest.raises(TableError, match="is a table of kind store and the run needs ngram"):
        tables.load(saved, Table("ngram"))
    with pytest.raises(TableError, match="was made with another vocabulary"):
        tables.check_vocabulary(saved, STORE, tasks.Bytes().plain())
    with pytest.raises(TableError, match="exists; give a new folder"):
        tables.save(saved, "store", {})


def test_an_order_that_was_not_counted_is_refused():
    table = {name: jnp.asarray(x) for name, x in tables.count(TEXTS, V, 2).items()}
    with pytest.raises(ValueError, match="n-grams up to 2 and NGram.order is 3"):
        jax.eval_shape(lambda: NGram(3, Greedy()).init(Params(table=table), None))


@pytest.mark.ci
def test_train_makes_tables_that_decode_drafts_with(tmp_path, capfd):
    out, table = tmp_path / "out", tmp_path / "out" / "table"
    made = ["train", *RUN, f"--output_dir={out}", "--tokens=120"]
    assert cli.main([*made, "--table=ngram"]) == 0
    texts = (out / "texts.jsonl").read_bytes()
    run = [*RUN, "--limit=4", "--compare", f"--gin.DRAFT_TABLE_PATH='{table}'"]
    assert cli.main(["decode", *run, "--drafter=ngram"]) == 0
    assert "NGram, Fixed(gamma=7), GreedyMatch(), Greedy()" in (said := capfd.readouterr().err)
    assert "all 4 outputs identical" in said
    assert cli.main([*made, "--table=store"]) == 0
    assert (out / "texts.jsonl").read_bytes() == texts
    assert cli.main(["decode", *run, "--drafter=retrieval"]) == 0
    assert "all 4 outputs identical" in (said := capfd.readouterr().err)
    per_call = float(said.split(" tokens per call")[0].split()[-1])
    assert per_call > 3  # the texts are in the store
    assert cli.main(["decode", *run, "--drafter=ngram"]) == 2
    assert "is a table of kind store and the run needs ngram" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["prompt_lookup", "input_copy", "hybrid", "uniform"])
def test_drafters_without_tables_from_the_command_line(capfd, drafter):
    assert cli.main(["decode", *RUN, "--limit=4", "--compare", f"--drafter={drafter}"]) == 0
    assert "all 4 outputs identical" in capfd.readouterr().err
    assert demo.path("draft")
