"""The cost model: what a device's tables cost, predicted from their features."""
