"""What `TableTarget` sums, layer by layer, worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from specdec.testing import TableTarget


def test_each_layer_is_off_by_the_layers_that_are_missing():
    """Tokens 2 and 3 after 4: the sums are 6 and 9, modulo 7, and off by two, one and none."""
    target = TableTarget(7, num_layers=3)
    params = target.init(jax.random.key(0))
    before = target.prefill(params, jnp.array([[1]]), 4)
    _, before = target.decode(params, jnp.array([[4]]), before)
    tokens, sums = jnp.array([[2, 3]]), ([1, 4], [0, 3], [6, 2])

    def passed(layers, resume=None):
        output, cache = target.decode(params, tokens, before, layers=layers, resume=resume)
        assert cache.length.tolist() == [3]
        return output.stream

    whole, cache = target.decode(params, tokens, before)
    assert whole.stream is None and whole.hidden[0, :, 1].tolist() == sums[2]
    np.testing.assert_array_equal(whole.logits, params["logits"][0][jnp.array(sums[2]), tokens])
    for count, expected in enumerate(sums, start=1):
        assert passed((0, count))[0, :, 1].tolist() == expected
    first = passed((0, 1))
    np.testing.assert_array_equal(passed((1, 3), resume=first), whole.hidden)
    # What is wrong in one layer is wrong in those above; what passes by is in their caches.
    wrong = passed((1, 3), resume=first.at[0, 0, 1].add(2))
    assert wrong[0, :, 1].tolist() == [(6 + 2) % 7, 2]
    skipped = target.pass_by(params, first, before, (1, 3))
    assert skipped.length.tolist() == [3]
    for layer in (1, 2):
        np.testing.assert_array_equal(skipped.keys[layer], cache.keys[layer])
