"""Programs compiled ahead of time for TPUs that need not be there, and what that tells.

topology = Topology.parse("v4:2x2x1")
mesh = partitioning.make_mesh(4, topology.devices())
programs = compile_for(subject, mesh, rules, draft_rules)
print(*lines(record(topology, mesh.shape, subject, programs, alphas)), sep="\\n")
"""

from specdec.compile.hardware import CHIPS, Topology
from specdec.compile.programs import Programs, Subject, compile_for
from specdec.compile.report import lines, markdown, record
from specdec.compile.roofline import PAPER_ALPHAS

__all__ = [
    "CHIPS",
    "PAPER_ALPHAS",
    "Programs",
    "Subject",
    "Topology",
    "compile_for",
    "lines",
    "markdown",
    "record",
]
