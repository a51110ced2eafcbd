"""Ingest and delivery together, at a set rate.

    together   the figures
    pacer      the producer that keeps to a rate, a process of its own

Used by `python -m benchmarks both replicas`.
"""
