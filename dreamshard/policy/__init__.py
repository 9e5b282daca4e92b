"""The estimated MDP, the policy network that places tables in it, and one improvement of a policy (`mdp`)."""
