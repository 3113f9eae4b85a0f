"""The command `windrow`: one module per subcommand, imported when it is used."""
