"""`dreamshard what-if`: what a training step of some tables would cost on other clusters."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli import terminal
from flows.cli.command_options import HomeOption, JsonOption, enter
from flows.cli.place_options import OptimizerOption, PrecisionOption, TablesArgument, check_tables
from flows.placing.model_tables import read_model, setting_of

if TYPE_CHECKING:
    from dreamshard.what_if import Cluster, Estimate

PICTURES = (".png", ".svg", ".html")


def what_if(
    tables: TablesArgument,
    hardware: Annotated[
        str,
        typer.Option("--hardware", help="Clusters: presets or files with a number of devices, e.g. a100:8,my.yaml:64."),
    ],
    precision: PrecisionOption = None,
    optimizer: OptimizerOption = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch-size", min=1, max=2**31 - 1, help="Training samples per step of all devices.", show_default="65536"
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="File for a picture: .png, .svg or .html.")] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare clusters for TABLES: predicted cost of a step, memory and balance on each, by published figures alone."""
    check_tables(tables)
    store = enter(home, reads_only=True)
    _check(out)
    from dreamshard.tables import DEFAULT_BATCH
    from dreamshard.what_if import what_if

    batch_size = batch_size or DEFAULT_BATCH
    clusters = parse_clusters(hardware)
    model = read_model(store, tables, terminal.note)
    listed = model.tables
    precision, optimizer = setting_of(model, precision, optimizer, terminal.note)
    estimates = what_if(listed, clusters, precision=precision, optimizer=optimizer, batch_size=batch_size)
    setting = f"{precision}, {optimizer}, batch {batch_size:,}"
    title = f"{tables.name}: {len(listed)} tables, {setting}"
    if out is not None:
        _draw(estimates, title, out)
        terminal.note(f"wrote {out}")
    if as_json:
        settings = {"precision": precision, "optimizer": optimizer, "batch_size": batch_size}
        terminal.print_json([{**_figures(estimate), **settings} for estimate in estimates])
        return
    terminal.print_table(_rows(estimates), title=f"Predicted training step, {title}")
    for estimate in filter(lambda one: one.infeasible, estimates):
        terminal.say(f"{_name(estimate.cluster)} does not fit: {estimate.infeasible}")


def parse_clusters(text: str) -> "list[Cluster]":
    """The clusters of `a100:8,my.yaml:64`.

    Raises:
        ValueError: an entry has no number of devices, or names no hardware.
    """
    from dreamshard.hardware.accelerator import hardware
    from dreamshard.what_if import Cluster

    clusters = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, _, count = entry.rpartition(":")
        if not name or not count.isdigit() or not 1 <= int(count) <= 4096:
            raise ValueError(
                f"{entry!r} names no cluster, so nothing can be predicted for it; give hardware and 1 to 4096 devices, for "
                "example a100:8 or my_cluster.yaml:64"
            )
        clusters.append(Cluster(called=name, spec=hardware(name), num_devices=int(count)))
    if not clusters:
        raise ValueError("--hardware names no cluster, so nothing is compared; give for example a100:8,h100:8")
    return clusters


def _name(cluster: "Cluster") -> str:
    return f"{Path(cluster.called).stem} x{cluster.num_devices}"


def _rows(estimates: "list[Estimate]") -> list[dict[str, Any]]:
    """The table for people; the cheapest step is 1.00."""
    from dreamshard.files.text import gib

    least = min((one.overall_ms for one in estimates if not one.infeasible), default=0.0)
    rows = []
    for one in estimates:
        fits, memory = not one.infeasible, one.cluster.table_bytes
        rows.append(
            {
                "cluster": _name(one.cluster),
                "hosts": one.cluster.num_hosts,
                "step ms": f"{one.overall_ms:.3f}" if fits else "does not fit",
                "relative": f"{one.overall_ms / least:.2f}" if fits else "-",
                "compute ms": f"{one.phases_ms[0] + one.phases_ms[3]:.3f}" if fits else "-",
                "all-to-all ms": f"{one.phases_ms[1] + one.phases_ms[2]:.3f}" if fits else "-",
                "indices ms": f"{one.index_ms:.3f}" if fits else "-",
                "balance": f"{one.balance:.0%}" if fits else "-",
                "fullest device": f"{gib(one.largest_bytes)} of {gib(memory)}" if fits else f"- of {gib(memory)}",
                "shards": one.num_shards if fits else "-",
            }
        )
    return rows


def _figures(estimate: "Estimate") -> dict[str, Any]:
    """One cluster for programs; the figures are null where nothing fits."""
    from dreamshard.costs import PHASES

    cluster, fits = estimate.cluster, not estimate.infeasible
    return {
        "hardware": cluster.called,
        "name": cluster.spec.name,
        "num_devices": cluster.num_devices,
        "num_hosts": cluster.num_hosts,
        "devices_per_host": min(cluster.num_devices, cluster.spec.devices_per_node),
        "memory_bytes": cluster.table_bytes,
        "overall_ms": estimate.overall_ms if fits else None,
        **{f"{phase}_ms": ms if fits else None for phase, ms in zip(PHASES, estimate.phases_ms, strict=True)},
        "index_exchange_ms": estimate.index_ms if fits else None,
        "balance": estimate.balance if fits else None,
        "largest_memory_bytes": estimate.largest_bytes if fits else None,
        "shards": estimate.num_shards if fits else None,
        "infeasible": estimate.infeasible or None,
    }


def _check(out: Path | None) -> None:
    """Check, before anything is placed, that the picture can be written."""
    if out is None:
        return
    if out.suffix not in PICTURES:
        raise ValueError(f"{out} is no picture that can be written; end its name in one of {', '.join(PICTURES)}")
    from dreamshard.files import atomic

    atomic.check_output(out, "picture")


def _draw(estimates: "list[Estimate]", title: str, out: Path) -> None:
    from dreamshard.files import atomic
    from dreamshard.files.text import markdown_table
    from flows.reports.html import html_page
    from flows.reports.what_if_plot import image, image_link, plot_clusters

    names = [_name(estimate.cluster) for estimate in estimates]
    figure = plot_clusters(estimates, names, title)
    if out.suffix != ".html":
        atomic.write_output(out, image(figure, out.suffix.removeprefix(".")))
        return
    notes = [
        f"- {name} does not fit: {one.infeasible}" for name, one in zip(names, estimates, strict=True) if one.infeasible
    ]
    page = "\n\n".join([f"# {title}", image_link(figure), markdown_table(_rows(estimates)), "\n".join(notes)])
    atomic.write_output(out, html_page(page, title))
