"""The estimated MDP, and the policy network that places tables in it.

policy_network   scores of devices
mdp              episodes, and their compiled rollout
reinforce        one improvement of a policy
"""
