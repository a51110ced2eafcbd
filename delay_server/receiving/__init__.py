"""Receivers: services that connect to the port of producers and get messages.

    receivers   ATTACH, FLOW and SETTLE, and their answers
    moves       records messages that receivers want to have later

Imported by mastership and the server.
"""
