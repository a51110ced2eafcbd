"""Commands that are a server, and their settings.

    broker          `delaywheel broker`
    delay_server    `delaywheel delay-server`
    meta_server     `delaywheel meta-server`
    settings        `delaywheel settings`

Imported by main.
"""
