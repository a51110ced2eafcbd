"""Rules of subjects under load: rate limits and pauses."""
