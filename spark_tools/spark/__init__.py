"""Spark itself.

    engine    tasks to Spark's workers
    session   a Spark session

Imported by delaywheel.
"""
