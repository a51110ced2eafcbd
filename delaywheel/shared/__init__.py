"""Shared parts of commands.

    admin_client        asks a server's administration
    background_output   standard output and error that no writer waits for
    failures            errors to exit codes
    http_exchange       one HTTP question and its answer
    log_output          where log events go
    options             options of several commands
    parameters          delays, moments and attributes
    terminal            tables for people

Imported by every other part.
"""
