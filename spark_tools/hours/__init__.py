"""Each hour once, as it closes.

    by_hour            runs by closed hour
    state_directory    what they leave
    summary            all hours added up

Imported by delaywheel.
"""
