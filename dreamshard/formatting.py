"""How figures are written for people."""


def gib(num_bytes: int) -> str:
    """`0.25 GiB`, `141 GiB`, `59,605 GiB`."""
    size = num_bytes / 2**30
    return f"{size:,.0f} GiB" if size >= 1000 else f"{size:.3g} GiB"
