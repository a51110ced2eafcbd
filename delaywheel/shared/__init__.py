"""Shared parts of commands.

    admin_client        asks a server's administration
    background_output   standard output and error that no writer waits for
    failures            errors to exit codes
    log_output          where log events go
    options             options of several commands
    parameters          delays, moments and attributes
    sending             a client, and what became of what it sent
    tables              tables and figures for people
    terminal            an answer, shown once or again and again

Imported by every other part.
"""
