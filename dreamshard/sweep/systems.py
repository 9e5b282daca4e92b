"""Every placer by name, trained within a cell. All that learn from measurements learn from equally many,
except those of a real MDP, which measure every step.

A name that ends in `_columns` may split tables by columns; all others place whole tables.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dreamshard.baselines import baselines
from dreamshard.peers import FITTED, OF_TORCHREC, ON_NETWORK, peer, trained_peer
from dreamshard.peers.torchrec_planner import TorchRecPlanner
from dreamshard.placement import Placement
from dreamshard.placer import NoPlacementError, Placer
from dreamshard.search import PARTS, part_of
from dreamshard.sweep.ablations import ABLATIONS
from dreamshard.sweep.bench import Bench, Build, System
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.simulated import SimulatedTestbed

_RNN = {"rnn": True, "rnn_predicted": False}  # whether it measures by itself


@dataclass(frozen=True)
class _WithoutRoom:
    """A placer that could not learn, since nothing that it tried fits: every task counts as one that it fails."""

    name: str
    reason: str

    def place(self, _task: PlacementTask) -> Placement:
        """Raises NoPlacementError."""
        raise NoPlacementError(self.reason)


def _rule(name: str) -> Build:
    return lambda bench: System(placer=baselines(bench.seed)[name])


def _rnn(name: str) -> Build:
    def build(bench: Bench) -> System:
        base, began = bench.system("dreamshard"), time.process_time()
        measure = bench.testbed.measure if _RNN[name] else None
        placer: Placer
        try:
            placer = trained_peer(
                name, base.placer, bench.tasks, bench.seed, measure=measure, measurements=bench.measurements
            )
        except NoPlacementError as error:  # none of its first placements fits, so it learns nothing
            placer = _WithoutRoom(name, str(error))
        learning_s = time.process_time() - began
        return System(
            placer=placer,
            learning_s=learning_s + (0.0 if _RNN[name] else base.learning_s),
            measurements=bench.measurements,
        )

    return build


def _fitted(name: str) -> Build:
    def build(bench: Bench) -> System:
        base, began = bench.system("dreamshard"), time.process_time()
        placer = peer(name, None, bench.seed, samples=base.samples)
        return System(placer=placer, learning_s=time.process_time() - began, measurements=base.measurements)

    return build


def _torchrec(name: str) -> Build:
    """With the bandwidths of the simulated accelerator; on real CPU ranks with TorchRec's own."""

    def build(bench: Bench) -> System:
        spec = bench.testbed.spec if isinstance(bench.testbed, SimulatedTestbed) else None
        return System(placer=TorchRecPlanner(name=name) if spec is None else TorchRecPlanner.on(spec, name))

    return build


def _on_dreamshard(make: Callable[[Any], Placer]) -> Build:
    """A placer on the networks of `dreamshard`."""
    return lambda bench: replace(base := bench.system("dreamshard_columns"), placer=make(base.placer))


SYSTEMS: dict[str, Build] = {
    **{name: _rule(name) for name in baselines()},
    "dreamshard_columns": lambda bench: bench.trained("dreamshard"),
    "dreamshard": _on_dreamshard(lambda placer: replace(placer, columns=False)),
    **{name: _on_dreamshard(partial(part_of, name)) for name in PARTS},
    "paper": lambda bench: bench.trained("paper"),
    "autoshard": lambda bench: bench.trained("autoshard"),
    "rnn": _rnn("rnn"),
    "rnn_predicted": _rnn("rnn_predicted"),
    **{name: _fitted(name) for name in FITTED},
    **{name: _on_dreamshard(partial(peer, name)) for name in ON_NETWORK},
    **{name: _torchrec(name) for name in OF_TORCHREC},
    **ABLATIONS,
}
"""Builds a placer by name."""
