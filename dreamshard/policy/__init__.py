"""The estimated MDP, and the policy network that places tables in it."""
