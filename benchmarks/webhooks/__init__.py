"""Measures a gateway: messages that come by POST, and webhooks."""
