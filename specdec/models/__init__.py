"""Models: a folder for each family, a row for it in `families`, and the pieces that they share.

Nothing else in the package knows what is inside one.
"""
