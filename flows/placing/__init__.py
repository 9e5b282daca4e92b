"""Placing tables that a person names: the parts that the command `place` and the flow `place` share.

request    what a person asks for, checked as a whole, then placed; the plan and its moves in sentences
placers    placers by name or by hardware
plan_page  the plan as a page of HTML

Sentences for people go to a function `note`, which the command prints and the flow logs.
"""
