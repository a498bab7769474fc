"""Tolerances that several files share.

Other processors sum in other orders. So each figure that was measured says where: on an AMD EPYC
with AVX-512, on an AMD EPYC with AVX2 (Zen 3), or on an Intel Xeon (Sapphire Rapids). A run of the
tests prints its largest shares of these tolerances (`margins.py`). A comparison anywhere in the
tests that names no processor had a share of at most 0.5 on an AMD EPYC (Zen 5) with AVX-512, and
with its AVX2 and SSE4.2 instructions.
"""

# Float32 logits and log-probabilities of random networks of two to four layers by two programs: the
# sums differ in order, which the weights amplify. Of logits up to 27 by 4.5e-5 (EPYC, AVX-512) and
# 5.6e-5 (EPYC, AVX2). T5X's own are up to 8.5e-4 from exact ones (tests/models/test_models.py).
LOGITS = 2e-4

# The same of networks whose logits stay below 8: 3e-6 (EPYC, AVX-512).
SMALL_LOGITS = 1e-5

# Float32 probabilities and logarithms of them, of the same logits: some ten roundings of 6e-8 each.
# Measured: 5e-7 (EPYC, AVX-512).
PROBABILITIES = 1e-5

# Scores of beams: sums of up to 40 float32 logarithms of such logits, by two programs. The
# difference grows with the sum: of -27 it was 1.7e-4 (Xeon), which is 6.3e-6 of it. A penalty
# multiplies some sums by up to 20: theirs differed by 0.4 of 2e-4 + 1e-5 of the score (EPYC, AVX2).
SCORES = dict(rtol=2e-5, atol=2e-4)

# Float64 sums of products of probabilities, each rounded by 1.1e-16, thousands at most: 3.3e-16
# (EPYC, AVX-512).
FLOAT64 = 1e-12
