"""Who is alive, who is master of what, and which broker groups a subject has."""
