"""Which queue of the sender a subject's messages go to.

    agenda          which lanes to check next
    lanes           lanes of subjects, and what waits on disk
    new_subjects    bounds first-seen subjects
    rate_limits     token buckets of limited subjects
    routes          broker groups of subjects, from the meta server
    subject_rules   pauses and limits of subjects

Imported by filing and sending.
"""
