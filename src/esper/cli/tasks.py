"""`esper tasks`: list the tasks and whether their data is installed."""

from dataclasses import dataclass
from pathlib import Path

from esper.cli.output import check_writable, print_table, say, write_json


@dataclass(frozen=True, slots=True)
class Tasks:
    """List the tasks, their hosts and whether their data is installed."""

    json: Path | None = None
    """Write the list to this file too."""

    def run(self) -> bool:
        check_writable(self.json)
        from rich.table import Column

        from esper.tasks import data_folder, find_task, task_families, task_names

        shown, tasks = [], []
        for task in map(find_task, task_names()):
            params = sum(p.numel() for p in task.build_host().parameters())
            shown.append((task.name, task.summary, f"{task.host}, {params:,}", str(task.episode_length), task.data()))
            told = {"name": task.name, "summary": task.summary, "host": task.host, "host_params": params}
            tasks.append({**told, "episode_length": task.episode_length, "data": task.data()})
        families = [
            {"name": family.form, "summary": family.summary, "host": family.host, "data": family.data()}
            for family in task_families()
        ]
        shown += [(row["name"], row["summary"], row["host"], "", row["data"]) for row in families]
        columns = (Column("task", no_wrap=True), "what it is", "host, parameters", "epochs", "data")
        print_table(columns, shown)
        say("Any of them can have a host of other sizes, as in mnist1d@channels=4-8 or digits@widths=12-12.")
        say(f"Data folder: {data_folder()}; set ESPER_DATA to use another.")
        write_json(self.json, {"tasks": tasks, "families": families})
        return True
