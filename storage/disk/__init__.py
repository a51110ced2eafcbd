"""The file system as the logs see it.

    disk         Disk and File: the seam to the operating system
    errors       storage errors, by remedy
    read_ahead   sequential reading past bad sectors
    sorting      sorting that lets other threads run
    spans        minute, hour and day: how time is cut into segments

Imported by every other part.
"""
