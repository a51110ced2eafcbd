"""What a gateway takes by POST, and what it posts to webhooks."""
