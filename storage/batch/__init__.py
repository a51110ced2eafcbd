"""The bytes of a log: batches of columns. docs/formats draws them.

    batches        header, CRC, compression of a batch
    chained_file   one append-only file of batches
    columns        table of names and arrays of a batch
    dead_rows      an item and how it came to be given up
    entries        the 40-byte index entry of a pending message
    facts          outcomes of messages, as arrays
    file_header    the first 64 bytes of a log file
    item_formats   whether the bytes of an item are whole
    rows           messages on their way into segments, as arrays
    walk           the one walk over the batches of a file

Imported by whatever reads or writes a log.
"""
