"""The numbers of `esper bench speed` as tables."""

from typing import Any

from esper.cli.output import make_console


def print_speed(report: dict[str, Any]) -> None:
    """Print what was measured."""
    from rich import box
    from rich.table import Table

    console = make_console()
    table = Table(
        "host", "hosts", "bare", "loop", "stacked", title="host steps per second (and times bare)", box=box.SIMPLE
    )
    for host, speeds in report["host_steps_per_second"].items():
        for num, bare in speeds["bare"].items():
            ratios = (f"{speeds[name][num]:,.0f} ({speeds[name][num] / bare:.2f})" for name in ("loop", "stacked"))
            table.add_row(host, num, f"{bare:,.0f}", *ratios)
    console.print(table)
    for note in report["notes"]:
        console.print(note)

    table = Table("executor", "s", "training", "measuring", "all else", title="a whole step", box=box.SIMPLE)
    for name, part in report["whole_step"].items():
        shares = (f"{part[share + '_share']:.1%}" for share in ("training", "measuring", "bookkeeping"))
        table.add_row(name, f"{part['seconds_per_step']:.3f}", *shares)
    console.print(table)

    table = Table("", "", "s per step", "peak MB", title="growth of time and memory", box=box.SIMPLE)
    for by, sizes in report["growth"].items():
        for size, case in sizes.items():
            table.add_row(by.replace("_", " "), size, f"{case['seconds_per_step']:.3f}", f"{case['peak_mb']:.0f}")
    console.print(table)

    update = report["ppo_update"]
    columns = ("LSTM", "our update, s", "its LSTM calls, s", "RecurrentPPO, s", "ratio", "one decision, ms")
    table = Table(*columns, box=box.SIMPLE)
    for size, ours in update["ours_s"].items():
        theirs = [f"{update[key][size]:.2f}" if update[key] else "-" for key in ("sb3_s", "speedup")]
        calls, decision = update["lstm_s"][size], report["act_step_ms"][size]
        table.add_row(size, f"{ours:.3f}", f"{calls:.3f}", *theirs, f"{decision:.2f}")
    console.print(table)
    if update["note"]:
        console.print(update["note"])
