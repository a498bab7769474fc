"""Predicted times, and the search for the settings that suit a pair best.

`costs` has the seconds of calls, and predicts an iteration from them. They are timed
(`timed_costs`), read from a file (`stored_costs`), follow from shapes and a chip's limits
(`roofline`), or are the compiler's cycles (`compile_record`).

`draft_lengths` decodes recorded texts again, with recordings instead of models, which counts target
calls. `predicted_speedup` makes figures from these counts and the costs, and `search` finds the
draft length, schedule and drafter.

Programs are compiled ahead of time for TPUs that need not be present:

topology = Topology.parse("v4:2x2x1")
mesh = partitioning.make_mesh(4, topology.devices())
compilation = compile_for(plan, (1, 512), mesh)  # one text of 512 tokens
for line in lines(record(topology, compilation, {"paper": 0.75})):
    print(line)
"""
