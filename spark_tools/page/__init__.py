"""The HTML page of a run.

    figures   what the page shows, as numbers
    page      the page
    plots     inline SVG
    tables    tables and their words

Imported by hours and delaywheel.
"""
