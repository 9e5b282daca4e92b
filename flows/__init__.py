"""The story: Prefect flows over the library, and the `dreamshard` command."""
