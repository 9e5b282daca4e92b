"""Names of deployments and automations on Prefect's server; light, since Prefect itself takes seconds to import."""

SCHEDULED = ("retrain", "watch")
"""Deployments that take the setting of the scheduled flows as parameters."""

FAILURES = {"retrain": "notify someone that a retraining failed", "watch": "notify someone that watching tables failed"}
"""Automations that send a notification, by the deployment whose failures they report."""

NOTIFY = "DREAMSHARD_NOTIFY"
"""Variable with the address, or the block, that `flows.servers.notifications` sends to; it may hold a password."""
