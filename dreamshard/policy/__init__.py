"""The estimated MDP, and the policy network that places tables in it.

mdp         episodes, their state and steps
network     scores of devices for the next table
rollout     a policy through many episodes at once
reinforce   one improvement of a policy
"""
