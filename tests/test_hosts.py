"""Values that several hosts exchange, with another host's values by hand.

pytest tests/test_hosts.py
"""

from __future__ import annotations

import pickle

import jax
import numpy as np
import pytest

from specdec.common import hosts
from specdec.common.records import RecordsError


@pytest.fixture
def second(monkeypatch):
    """Makes this process one of two hosts, the first one unless it is told otherwise."""
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "process_index", lambda: 0)
    return lambda: monkeypatch.setattr(jax, "process_index", lambda: 1)


@pytest.mark.parametrize("other", ["a", "a text that is longer" * 20])
def test_values_of_any_length_are_exchanged(second, monkeypatch, other):
    own, asked = {"a": [1, 2.5]}, []

    def gathered(array: np.ndarray) -> np.ndarray:
        theirs = np.frombuffer(pickle.dumps(other), np.uint8)
        asked.append(array.shape)
        if not array.shape:
            return np.array([array, len(theirs)])
        return np.stack([array, np.pad(theirs, (0, len(array) - len(theirs)))])

    monkeypatch.setattr(hosts.multihost_utils, "process_allgather", gathered)
    assert hosts.exchanged(own) == [own, other]
    longest = max(len(pickle.dumps(value)) for value in (own, other))
    assert asked == [(), (longest,)]


def test_the_largest_number_of_all_hosts(second, monkeypatch):
    gathered = lambda array: np.array([array, 7])  # noqa: E731
    monkeypatch.setattr(hosts.multihost_utils, "process_allgather", gathered)
    assert [hosts.largest(number) for number in (3, 9)] == [7, 9]


def test_the_first_host_acts_and_tells_the_others(second, monkeypatch):
    sent, told = [], []

    def exchanged(value):
        sent.append(value)
        return [told.pop() if told else value, (None, None)]

    def fail():
        raise KeyError("no disk")

    monkeypatch.setattr(hosts, "exchanged", exchanged)
    assert hosts.is_first() and hosts.from_first(lambda: 5) == 5
    with pytest.raises(KeyError, match="no disk"):
        hosts.from_first(fail)
    assert sent == [(5, None), (None, "'no disk'")]
    second()
    told += [sent[1], sent[0]]
    assert not hosts.is_first() and hosts.from_first(fail) == 5
    with pytest.raises(RecordsError, match="^the first host ended: 'no disk'$"):
        hosts.from_first(lambda: 3)
    assert sent[2:] == [(None, None)] * 2
