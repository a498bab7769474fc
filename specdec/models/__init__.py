"""Models: one folder and one row of `families` for each family, and folders that families share.

The rest of the package does not depend on the inside of a family.

  contract      interfaces of models and families, inputs, caches, and attention between tokens
  layers        layers and matrix products of the networks
  bases         base classes that families share
  sizes         smaller and larger models made from a trained one
  placement     layouts and widths of calls that suit the device

Gin files import three more modules by name: `families`, `heads` and `partitioning`.
"""
