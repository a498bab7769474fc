"""Measurements of runs: acceptance, times, and outputs with their metrics.

**Acceptance** is the papers' alpha, the probability that the target accepts a draft token:
Leviathan, Kalman and Matias (2211.17192), tables 3 and 5. The target first writes texts without a
drafter. At each token of these texts, each drafter then computes its distribution q, and

  alpha(l) = mean over tokens of sum_x min(p(x) / l, q(x))

with p the target's distribution and lenience l (appendix A.5), which is 1 for exact output. At
temperature 0, q is one token, which counts

  l = 1   if it is the argmax of the target's logits
  l < 1   if softmax(logits) is at least l times its maximum there

(The paper prints "at most", by which l = 1 would accept everything.) Letters are those of `types`,
and L is the number of leniences. `recording` runs the target and all drafters on each text,
`opinions` computes one drafter's figures at each token, and `alphas` averages them over texts.

**Benchmarks** time generations with speculation and with the target alone, in one process, and
each part of a generation. `parts` has the timed programs, `measurement` times them, and `file`
stores the timings. `summary` and `estimator` compute figures from the timings, and `printed` prints
the figures and how far they can be trusted.

**Evaluations** decode a split of a task into a folder (`prediction_files`) and compute the metrics
of the outputs (`output_metrics`).
"""
