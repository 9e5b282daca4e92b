"""From the plan in use to a new one, moving only what is worth it.

blocks     parts of tables on devices, and what has to move between two placements
in_use     the plan in use as a placement of today's tables: some are new, gone or of another size
renaming   equal devices change names, so that less moves
order      moves one after another, no device ever above its memory
price      milliseconds of every step against bytes moved once
weighing   the placement of the least cost once moving is paid for
paths      from one placement to another, table by table
relocation steps between placements, each with its cost and bytes
"""

from dreamshard.moving.blocks import Block, Move, blocks_of, moved_bytes, moves
from dreamshard.moving.in_use import InUse, in_use
from dreamshard.moving.order import Schedule, Step, schedule
from dreamshard.moving.price import MovePrice, Point
from dreamshard.moving.renaming import renamed
from dreamshard.moving.weighing import Weighed, weigh

__all__ = [
    "Block",
    "InUse",
    "Move",
    "MovePrice",
    "Point",
    "Schedule",
    "Step",
    "Weighed",
    "blocks_of",
    "in_use",
    "moved_bytes",
    "moves",
    "renamed",
    "schedule",
    "weigh",
]
