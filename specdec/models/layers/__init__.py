"""Layers that families share, and the products that they are made of."""
