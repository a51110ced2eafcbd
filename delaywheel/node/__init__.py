"""Commands for a delay server.

    controls        `delaywheel controls`
    dead            `delaywheel dead`
    drain           `delaywheel drain`
    explain         `delaywheel explain`
    rule_commands   `delaywheel pause`, `resume`, `limit`, `weight`
    send            `delaywheel send`

Imported by main.
"""
