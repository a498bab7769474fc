"""How far the arguments of a command travel: pytest tests/cli/test_following.py"""

import ast

import pytest
from support import script

following = script("checks/following.py")
# Stays, files and returns at most. `python scripts/checks/following.py decode` shows the way.
MOST = {
    "decode": (21, 9, 12),
    "eval": (21, 9, 12),
    "verify": (19, 9, 10),
    "train": (25, 13, 12),
    "bench": (25, 11, 14),
    "tune": (37, 15, 22),
    "score": (25, 9, 16),
    "acceptance": (31, 13, 18),
}


@pytest.mark.parametrize("command, most", MOST.items())
def test_a_reader_does_not_get_lost(command, most):
    counts = following.followed(command).counts
    assert all(count <= bound for count, bound in zip(counts, most, strict=True)), counts


def test_the_command_of_decode_is_short():
    module = following.module_of("specdec.cli.decode")
    assert module is not None
    command = module.defined["command"]
    assert command.end_lineno is not None and command.end_lineno - command.lineno < 25


FILES = {
    "specdec/cli/one.py": """
import argparse
from specdec.cli import two
from specdec.cli.two import Reader
from specdec.common import three

def command(args):
    own(args.flag)  # the same file
    two.read([args.flag])  # there and back, by way of a third file
    two.read(args)  # was read
    run = two.read(args)
    three.use(run)  # no argument any more
    three.use(two.count(args))  # counted, and used elsewhere
    Reader(changed(args))

def own(flag):
    def inner():
        three.use(flag)

def changed(args) -> argparse.Namespace:
    return args
""",
    "specdec/cli/two.py": """
from specdec.common import three

def read(value):
    three.use(value or None)

def count(args):
    return 1

class Reader:
    def __init__(self, args):
        three.last(args)
""",
    "specdec/common/three.py": "def use(value):\n    pass\n\ndef last(args):\n    pass\n",
}


@pytest.fixture
def code(tmp_path, monkeypatch):
    """A package in which a walk is known."""
    for name, source in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(source)
    monkeypatch.setattr(following, "ROOT", tmp_path)
    following.module_of.cache_clear()
    yield
    following.module_of.cache_clear()


def test_the_arguments_are_followed(code):
    one, two, three = FILES
    walk = following.followed("one")
    assert walk.files == (one, two, three, two, one, two, one, two, three, two, one)
    assert walk.counts == (11, 3, 8)


def test_calls_come_in_the_order_of_evaluation():
    tree = ast.parse("f(g(1), x=h()(2))\nwith i():\n    j()")
    names = [ast.unparse(call.func) for call in following.calls(tree.body)]
    assert names == ["g", "h", "h()", "f", "i", "j"]
