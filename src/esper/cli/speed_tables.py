"""The numbers of `esper bench speed` as tables."""

from typing import Any

from esper.cli.output import make_console, print_table


def print_speed(report: dict[str, Any]) -> None:
    rows = []
    for host, speeds in report["host_steps_per_second"].items():
        for num, bare in speeds["bare"].items():
            ratios = (f"{speeds[name][num]:,.0f} ({speeds[name][num] / bare:.2f})" for name in ("loop", "stacked"))
            rows.append((host, num, f"{bare:,.0f}", *ratios))
    print_table(("host", "hosts", "bare", "loop", "stacked"), rows, "host steps per second (and times bare)")
    for note in report["notes"]:
        make_console().print(note)

    rows = []
    for name, part in report["whole_step"].items():
        shares = (f"{part[share + '_share']:.1%}" for share in ("training", "measuring", "bookkeeping"))
        rows.append((name, f"{part['seconds_per_step']:.3f}", *shares))
    print_table(("executor", "s", "training", "measuring", "all else"), rows, "a whole step")

    rows = [
        (by.replace("_", " "), size, f"{case['seconds_per_step']:.3f}", f"{case['peak_mb']:.0f}")
        for by, sizes in report["growth"].items()
        for size, case in sizes.items()
    ]
    print_table(("", "", "s per step", "peak MB"), rows, "growth of time and memory")

    update, rows = report["ppo_update"], []
    for size, ours in update["ours_s"].items():
        theirs = [f"{update[key][size]:.2f}" if update[key] else "-" for key in ("sb3_s", "speedup")]
        calls, decision = update["lstm_s"][size], report["act_step_ms"][size]
        rows.append((size, f"{ours:.3f}", f"{calls:.3f}", *theirs, f"{decision:.2f}"))
    print_table(("LSTM", "our update, s", "its LSTM calls, s", "RecurrentPPO, s", "ratio", "one decision, ms"), rows)
    if update["note"]:
        make_console().print(update["note"])
