"""The algorithms, one small file each. ``registry.py`` finds them by name.

Each file has one function that returns a ``Program``, but for ``binomial.py`` and ``halving.py``,
which hold what several of them share. Its inner ``lane(rank, channel)`` yields
one rank's steps; in the comments N is the world size, and a hop is one message's way from a rank
to the next.
"""
