"""Models: one folder and one row of `families` for each family, and modules that families share.

The rest of the package does not depend on the inside of a family.
"""
