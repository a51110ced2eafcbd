"""Commands for a delay server.

    change          `delaywheel cancel`, `move`
    controls        `delaywheel controls`
    dead            `delaywheel dead`
    drain           `delaywheel drain`
    explain         `delaywheel explain`
    find            `delaywheel find`
    pending         `delaywheel list`, `count`
    receiver        `delaywheel receiver`
    rule_commands   `delaywheel pause`, `resume`, `limit`, `weight`
    send            `delaywheel send`

Imported by main.
"""
