"""`esper bench speed`: all its measurements in one report, and the tables of it."""

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from esper_lab.host_speed import CONTENDERS, bench_host_steps
from esper_lab.learner_speed import bench_ppo_update
from esper_lab.step_speed import bench_scaling, bench_whole_step
from esper_lab.timing import Progress
from esper_lab.worker_speed import WORKERS, bench_workers
from esper_lab.workload import SpeedSettings


def measure_speed(settings: SpeedSettings, progress: Progress) -> dict[str, Any]:
    """Everything as plain data; see the parts for what it holds."""
    report: dict[str, Any] = {}
    for part in (bench_host_steps, bench_whole_step, bench_scaling, bench_workers):
        report |= part(settings, progress)
    progress("updates of the learner, a minute", 0, 1)
    report |= bench_ppo_update(settings.lstm_sizes, settings.repeats)
    report["setting"] |= {"batch_size": settings.batch_size, "optimizer": "AdamW, fused; host and seeds clipped apart"}
    return report


def print_speed(report: dict[str, Any], console: Console) -> None:
    """Show what `measure_speed` measured as tables."""
    table = Table("host", "hosts", *CONTENDERS, title="host steps per second (and times bare)", box=box.SIMPLE)
    for host, speeds in report["host_steps_per_second"].items():
        for num, bare in speeds["bare"].items():
            others = [speeds[name].get(num) for name in CONTENDERS[1:]]
            ratios = ("-" if speed is None else f"{speed:,.0f} ({speed / bare:.2f})" for speed in others)
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

    if report["workers"]:
        columns = ("hosts", "s per step", "one process", "ratio", "CPU-s until ready", "of the server, once")
        table = Table(*columns, title=f"{WORKERS} workers, by the clock", box=box.SIMPLE)
        keys = ("s_per_step", "alone_s_per_step", "speedup", "ready_cpu_s", "server_cpu_s")
        for envs, measured in report["workers"].items():
            table.add_row(envs, *(f"{measured[key]:.3g}" for key in keys))
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
