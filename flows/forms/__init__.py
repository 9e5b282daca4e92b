"""The parameters of flows, and the form that Prefect draws of them."""
