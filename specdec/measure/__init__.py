"""Measurements of runs: acceptance, times, and outputs with their metrics.

**Acceptance** is the papers' alpha: how much of a draft the target accepts, on texts that it
wrote alone. Leviathan, Kalman and Matias (2211.17192), tables 3 and 5. The target writes texts by
itself. Then every drafter is asked, at each of their tokens, for its distribution q, and

  alpha(l) = mean over tokens of sum_x min(p(x) / l, q(x))

with p the target's distribution and lenience l (appendix A.5), which is 1 for exact output. At
temperature 0, q is one token, which counts

  l = 1   if it is the argmax of the target's logits
  l < 1   if softmax(logits) is at least l times its maximum there

(The paper prints "at most", by which l = 1 would accept everything.) Letters are those of `types`,
and L is the number of leniences. `recording` lets the target write, records each drafter text by
text and counts the tables, `opinions` asks a drafter at each token, and `alphas` makes the figures.

**Benchmarks** time speculation relative to the target alone, in one process, and each part of a
generation. `parts` has the timed programs, `measurement` times them, and `file` keeps the
records. `summary` makes figures from them with one `estimator`. `printed` shows them, and says how
far they can be trusted.

**Evaluations** are outputs for a split of a task in a folder (`prediction_files`), and their
metrics (`output_metrics`).
"""
