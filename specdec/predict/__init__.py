"""Predicted times, and the search for the fastest settings of a target and its drafters.

`costs` has the seconds of model calls, and predicts the time of an iteration from them. Costs are
timed (`timed_costs`), read from a file (`stored_costs`), computed from shapes and a chip's limits
(`roofline`), or taken from the compiler's cycles (`compile_record`).

`draft_lengths` decodes recorded texts again, with recordings in place of models, to count target
calls. `predicted_speedup` computes speed-ups from these counts and the costs, and `search` finds
the fastest draft length, schedule and drafter.

Programs can be compiled ahead of time, without a TPU in the machine:

topology = Topology.parse("v4:2x2x1")
mesh = partitioning.make_mesh(4, topology.devices())
compilation = compile_for(plan, (1, 512), mesh)  # one text of 512 tokens
for line in lines(record(topology, compilation, {"paper": 0.75})):
    print(line)
"""
