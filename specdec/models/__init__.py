"""Models: one folder and one row of `families` for each family, and folders that families share.

The rest of the package does not depend on the inside of a family.

  contract      what every model has: methods, a family, inputs, a cache, and what a token sees
  layers        layers and products of families' networks
  bases         common parts of families
  sizes         smaller and larger models made from a trained one
  placement     layouts and widths of calls that suit the device

Gin files import three more modules by name: `families`, `heads` and `partitioning`.
"""
