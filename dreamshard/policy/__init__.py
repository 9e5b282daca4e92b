"""The estimated MDP, and the policy network that places tables in it.

mdp         the policy network; episodes, and their compiled rollout
reinforce   one improvement of a policy
"""
