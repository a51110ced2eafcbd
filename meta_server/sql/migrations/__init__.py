"""How the store's tables became what they are: one module for each version, and what runs them.

A migration is never changed once it was released: the next one alters what it made.
"""
