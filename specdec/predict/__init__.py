"""Predicted times, and the search for the settings that suit a pair best.

`costs` has the seconds of calls. They are measured (`measured_costs`), follow from shapes and a
chip's limits (`roofline`), or are the compiler's cycles (`cycles`). `calls` counts the calls' work.

From recorded texts, `forecasting` predicts the speed-up at every draft length: it decodes them
again with recordings (`recorded`) instead of models, which counts target calls, and `promise` makes
figures from these counts and the costs. `search` finds the draft length, schedule and drafter.

Programs are compiled ahead of time for TPUs that need not be present:

topology = Topology.parse("v4:2x2x1")
mesh = partitioning.make_mesh(4, topology.devices())
compilation = compile_for(plan, (1, 512), mesh)  # one text of 512 tokens
for line in lines(record(topology, compilation, {"paper": 0.75})):
    print(line)
"""
