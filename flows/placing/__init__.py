"""Placing tables that a person names: the parts that the command `place` and the flow `place` share.

models     the tables of a list or of a TorchRec model
request    what a person asks for, checked as a whole, then placed
placers    placers by name or by hardware
sentences  a plan, and the moves to it from the current plan, in sentences and as a page of Markdown
plan_page  the plan as a page of HTML
what_if    cost of a step on other clusters, by their published figures

Sentences for people go to a function `note`, which the command prints and the flow logs.
"""
