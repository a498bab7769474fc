"""Verifiers that give up exactness for speed or for another law; each says so in its docstring.

They are here to repeat the papers that proposed them, and are no default of any run. A plan with
one of them is lossy: certificates and benchmarks say so.
"""
