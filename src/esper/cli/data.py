"""`esper data`: download data sets and list them."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from esper.cli.output import check_writable, make_console, print_table, say, write_json


@dataclass(frozen=True, slots=True)
class Get:
    """Download data sets into the data folder and verify their checksums; damaged files are replaced."""

    names: tyro.conf.Positional[tuple[str, ...]]
    """Data sets: cifar10, fashion-mnist, mnist."""

    def run(self) -> bool:
        from rich.text import Text

        from esper.leyline import InputError
        from esper.tasks import SETS, fetch, find_set, is_published

        if not self.names:
            raise InputError(f"name at least one data set: {', '.join(SETS)}")
        sets = [find_set(name) for name in self.names]
        for dataset in sets:
            with make_console().status(Text(f"Checking {dataset.path()} ...")) as status:
                if not is_published(dataset):
                    fetch(dataset, lambda what: status.update(Text(what)))
            say(f"{dataset.name}: in {dataset.path()}, checksums verified")
        return True


@dataclass(frozen=True, slots=True)
class List:
    """List the data sets that tasks read from files, and whether they are installed."""

    json: Path | None = None
    """Write the list to this file too."""

    def run(self) -> bool:
        from rich.table import Column

        from esper.tasks import data_folder, find_task, task_names

        check_writable(self.json)
        tasks = [task for task in map(find_task, task_names()) if task.needs_files]
        rows = [(task.name, task.summary, task.data()) for task in tasks]
        print_table((Column("task", no_wrap=True), "what it is", "data"), rows)
        say(f"Data folder: {data_folder()}; set ESPER_DATA to use another.")
        write_json(self.json, {"folder": str(data_folder()), "sets": {task.name: task.data() for task in tasks}})
        return True


@dataclass(frozen=True, slots=True)
class Data:
    """Download data sets, and list which are installed."""

    what: Get | List

    def run(self) -> bool:
        return self.what.run()
