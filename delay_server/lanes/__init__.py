"""Which queue of the sender a subject's messages go to.

    agenda          which lanes to check next
    backlog         what was left on disk, by subject
    lanes           lanes of subjects, and who has to wait
    new_subjects    bounds first-seen subjects
    own_lanes       lanes of single subjects
    parked          subjects whose messages wait on disk
    routes          broker groups of subjects, from the meta server
    subject_rules   pauses of subjects

Imported by filing and sending.
"""
