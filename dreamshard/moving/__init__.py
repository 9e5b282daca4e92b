"""From the plan in use to a new one, moving only what is worth it.

blocks     parts of tables on devices, and the steps from one placement to another
in_use     the plan in use as a placement of today's tables: some are new, gone or of another size
renaming   equal devices change names, so that less moves
price      milliseconds of every step against bytes moved once
weighing   the placement of the least cost once moving is paid for
paths      from one placement to another, table by table
relocation steps between placements, each with its cost and bytes
"""

from dreamshard.moving.blocks import Block, Step, blocks_of, moved_bytes, steps
from dreamshard.moving.in_use import InUse, in_use
from dreamshard.moving.price import MovePrice, Point
from dreamshard.moving.renaming import renamed
from dreamshard.moving.weighing import Weighed, weigh

__all__ = [
    "Block",
    "InUse",
    "MovePrice",
    "Point",
    "Step",
    "Weighed",
    "blocks_of",
    "in_use",
    "moved_bytes",
    "renamed",
    "steps",
    "weigh",
]
