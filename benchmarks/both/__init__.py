"""Ingest and delivery together, at a set rate.

    together   the figures, by second and in all
    pacer      the producer that keeps to a rate, a process of its own

Used by `python -m benchmarks both both-max`.
"""
