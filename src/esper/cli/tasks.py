"""`esper tasks`: what there is to train on, and what is missing."""

from dataclasses import dataclass
from pathlib import Path

from esper.cli.output import check_writable, make_console, say, write_json


@dataclass(frozen=True, slots=True)
class Tasks:
    """List the tasks, their hosts and whether their data is here."""

    json: Path | None = None
    """Write the list to this file too."""

    def run(self) -> bool:
        """Print the table."""
        check_writable(self.json)
        from rich import box
        from rich.table import Column, Table

        from esper.tasks import data_folder, find_task, task_families, task_names

        rows: list[dict[str, object]] = []
        families: list[dict[str, object]] = []
        table = Table(Column("task", no_wrap=True), "what it is", "host, parameters", "epochs", "data", box=box.SIMPLE)
        for name in task_names():
            task = find_task(name)
            params = sum(p.numel() for p in task.build_host().parameters())
            host = f"{task.host}, {params:,}"
            table.add_row(name, task.summary, host, str(task.episode_length), task.data())
            row = {"name": name, "summary": task.summary, "host": task.host, "host_params": params}
            rows.append({**row, "episode_length": task.episode_length, "data": task.data()})
        for family in task_families():
            table.add_row(family.form, family.summary, family.host, "", family.data())
            row = {"name": family.form, "summary": family.summary, "host": family.host, "data": family.data()}
            families.append(row)
        make_console().print(table)
        say(f"Data is kept in {data_folder()}; set ESPER_DATA to keep it elsewhere.")
        write_json(self.json, {"tasks": rows, "families": families})
        return True
