"""What was sent again.

    repair_audit   the audit file of repairs
    repairs        sequences that were repaired

Imported by run, hours and repair.
"""
