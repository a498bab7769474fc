"""Programs compiled ahead of time for TPUs that need not be present, and their figures.

topology = Topology.parse("v4:2x2x1")
mesh = partitioning.make_mesh(4, topology.devices())
compilation = compile_for(plan, (1, 512), mesh)  # one text of 512 tokens
for line in lines(record(topology, compilation, {"paper": 0.75})):
    print(line)
"""
