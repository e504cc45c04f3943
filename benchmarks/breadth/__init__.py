"""Breadth: one whole life of growth on many architectures, and the table that tells how it went."""
