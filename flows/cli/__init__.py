"""The `dreamshard` command."""
