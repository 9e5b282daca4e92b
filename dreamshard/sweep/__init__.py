"""Sweeps: every placer at many sizes, on tables that none has seen, with intervals over tasks and seeds.

design     the cells of a sweep: what is trained where, and placed where
rosters    which systems take part in which experiment
tables     Meta's tables by their published statistics: for training, for choices, for the test
bench      what the systems of a cell are built from
ablations  DreamShard with one part left out
ablation_table   what each part is worth
real_mdp   the policy's training on measured costs, at every step
systems    every placer by name, trained within a cell
inputs     what a cell trains and is judged on, on the simulator; real_ranks: on real CPU ranks
judges     what placements cost: exact costs, or measured ones
cell       trains and places in one cell
summary    figures with intervals from the results of all cells
verdicts   which placer to trust, in words
page       verdicts and figures as a page of Markdown
"""

from dreamshard.sweep.cell import CellResult, run_cell
from dreamshard.sweep.design import SWEEPS, Cell, Sweep, cells_of, sweep
from dreamshard.sweep.page import page, with_all_budgets
from dreamshard.sweep.real_ranks import check_cells
from dreamshard.sweep.summary import Figure, summarise
from dreamshard.sweep.tables import Size

__all__ = [
    "SWEEPS",
    "Cell",
    "CellResult",
    "Figure",
    "Size",
    "Sweep",
    "cells_of",
    "check_cells",
    "page",
    "run_cell",
    "summarise",
    "sweep",
    "with_all_budgets",
]
