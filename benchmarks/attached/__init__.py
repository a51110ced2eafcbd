"""Receivers that attach to a delay server: how much they get, how late, and what it costs."""
