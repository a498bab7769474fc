"""Absolute tolerances that several files share. Measured are the largest differences in the default
suite on an AMD EPYC with AVX-512; other processors sum in other orders."""

# Float32 logits and log-probabilities of random networks of two to four layers by two programs: the
# sums differ in order, which the weights amplify. Of logits up to 27 by 4.5e-5; T5X's own are up to
# 8.5e-4 from exact ones (tests/models/test_models.py).
LOGITS = 1e-4

# The same of networks whose logits stay below 8: 3e-6.
SMALL_LOGITS = 1e-5

# Float32 probabilities and logarithms of them, of the same logits: some ten roundings of 6e-8 each.
# Measured: 5e-7.
PROBABILITIES = 1e-5

# Float64 sums of products of probabilities, each rounded by 1.1e-16, thousands at most: 3.3e-16.
FLOAT64 = 1e-12
