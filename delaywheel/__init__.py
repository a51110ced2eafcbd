"""The command `delaywheel`: one click group, a module per subcommand, no logic of its own."""
