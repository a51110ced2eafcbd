"""Each hour once, as it closes.

    by_hour        runs by closed hour
    hour_files     files of an hour
    hour_repairs   hours with later repairs
    state          the state directory
    summary        all hours added up
    sums           tables of many hours

Imported by delaywheel.
"""
