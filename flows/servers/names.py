"""Names of deployments and automations on Prefect's server; light, since Prefect itself takes seconds to import."""

SCHEDULED = ("retrain", "watch")
"""Deployments that take the setting of the scheduled flows as parameters."""

FAILURES = {"retrain": "notify someone that a retraining failed", "watch": "notify someone that watching tables failed"}
"""Automations that send a notification, by the deployment whose failures they report."""

GONE = "mark runs whose process is gone as crashed"
"""Automation that ends what a dead worker left."""

OVERDUE = {"retrain": "notify someone that a retraining takes very long", "watch": "end a watch that takes very long"}
WAITING = {"retrain": "notify someone that no worker retrains", "watch": "notify someone that no worker watches tables"}
"""Automations on runs that do not end, and on runs that do not begin, by deployment."""

NOTIFY = "DREAMSHARD_NOTIFY"
"""Variable with the address, or the block, that `flows.servers.notifications` sends to; it may hold a password."""
