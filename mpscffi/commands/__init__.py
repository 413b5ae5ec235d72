"""What the command ``mpscffi`` can do: a module for each subcommand, which adds itself to the parser."""
