"""Programs compiled ahead of time for TPUs that need not be present, and their figures.

topology = Topology.parse("v4:2x2x1")
mesh = partitioning.make_mesh(4, topology.devices())
compilation = compile_for(plan, (1, 512), mesh)  # one text of 512 tokens
for line in lines(record(topology, compilation, {"paper": 0.75})):
    print(line)
"""

from specdec.instrument.compile.compilation import (
    Compilation,
    Compiled,
    DeviceMemory,
    compile_for,
    program_count,
)
from specdec.instrument.compile.compile_report import explanation, lines, markdown, record
from specdec.instrument.compile.hardware import CHIPS, Topology
from specdec.instrument.compile.roofline import PAPER_ALPHAS

__all__ = [
    "CHIPS",
    "PAPER_ALPHAS",
    "Compilation",
    "Compiled",
    "DeviceMemory",
    "Topology",
    "compile_for",
    "explanation",
    "lines",
    "markdown",
    "program_count",
    "record",
]
