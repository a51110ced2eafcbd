"""Commands for a delay server.

    controls   `delaywheel controls`
    dead       `delaywheel dead`
    drain      `delaywheel drain`
    explain    `delaywheel explain`
    limit      `delaywheel limit`
    pause      `delaywheel pause`
    resume     `delaywheel resume`
    send       `delaywheel send`
    weight     `delaywheel weight`

Imported by main.
"""
