"""Messages that are taken back, or come at another time.

cancelling   which messages must not be sent any more: the one set that is asked
changer      brings rows to an end by CANCEL, MOVE or FACTS records
requests     CHANGE of clients: what they mean is found, changed and answered
"""
