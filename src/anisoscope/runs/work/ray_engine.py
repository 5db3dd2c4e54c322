"""Ray: a pass shared by accumulating workers, on this machine or on a cluster that may lose some of them.

The data is cut into units, a few for each worker. A worker keeps the study's model and sums between its units, saves
its state like any other process, and hands back one state at the end of its work. When a worker dies, its unfinished
units go back to the queue: another worker continues from the state that was saved, and the finished units of the dead
one are read from theirs. The sums add up to those of one pass whoever did what.

State is saved in the folder of the run, which all workers must be able to reach (a shared file system on a cluster).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from anisoscope.errors import MissingExtra, RanksLost, StoreError
from anisoscope.runs.progress import track
from anisoscope.runs.work.collected import Collected, add_part
from anisoscope.runs.work.engines import RankFailed
from anisoscope.runs.work.saved import find_saved
from anisoscope.runs.work.units import Unit, parse_shard

if TYPE_CHECKING:
    from anisoscope.runs.job import Job

Task = tuple[Unit, str | None]  # a share of the data, and of a series one checkpoint
UNITS_PER_WORKER = 4
_LOOK = 15.0  # seconds without news after which is asked whether the cluster is still there
TRIES = 3  # of one unit, before the death of its worker counts as a failure


def collect_on_ray(job: Job) -> Collected:
    """Collect the sums of a study with workers of Ray."""
    with _connected(job) as ray:
        job.begin()
        workers = job.machine.workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        root = Unit() if job.machine.shard is None else parse_shard(job.machine.shard)
        todo: list[Task]
        if job.study.labels is not None:
            todo = [(root, label) for label in job.study.labels(job.settings)]
        else:
            count = _former_cut(job) or workers * UNITS_PER_WORKER
            todo = [(Unit(i, count) if root.whole else root.part(i, count), None) for i in range(count)]
        return _Pool(ray, job, workers).run(todo)


def _former_cut(job: Job) -> int | None:
    """Into how many units an unfinished run was cut; None where nothing is on disk."""
    if job.folder is None:
        return None
    deep = 0 if job.machine.shard is None else 1
    units = [saved.unit for folder in (job.folder / "partial").glob("*") for saved in find_saved(folder, {})]
    cuts = {unit.of if not deep else unit.filters[0][1] for unit in units if len(unit.filters) == deep}
    if len(cuts) > 1 or any(len(unit.filters) != deep for unit in units):
        raise StoreError(
            "this run was begun with another number of processes",
            where=job.folder,
            do="continue without --engine ray, or --existing replace to start anew",
        )
    return next(iter(cuts), None)


@contextmanager
def _connected(job: Job) -> Iterator[Any]:
    """Ray, connected to a cluster that exists or to one that is started here and ended afterwards."""
    try:
        import ray
    except ImportError as error:
        raise MissingExtra("ray", needed_for="--engine ray", extra="ray") from error
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    owned = not ray.is_initialized()
    if owned:
        address = job.machine.address
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if address is None:
            options |= {"include_dashboard": False, "num_cpus": job.machine.workers}
        ray.init(address=address, **options)
    try:
        yield ray
    finally:
        if owned:
            ray.shutdown()


class _Pool:
    """Workers and the units that are still to be done."""

    def __init__(self, ray: Any, job: Job, workers: int) -> None:
        self.ray, self.job = ray, job
        options: dict[str, Any] = {"num_cpus": 1, "num_gpus": job.machine.gpus_per_worker, "max_restarts": 0}
        self.make = ray.remote(**options)(_Worker)
        folder = None if job.folder is None else str(job.folder.resolve())
        self.order = (job.study.name, job.settings.as_dict(), job.machine.as_dict(), folder)
        self.workers: dict[Any, Any] = {}
        for _ in range(workers):
            self._hire()

    def _hire(self) -> Any:
        worker = self.make.remote(*self.order)
        self.workers[worker] = []
        return worker

    def run(self, todo: list[Task]) -> Collected:
        """Give every worker one unit after the other, then ask each for its sums."""
        waiting, tries = list(todo), dict.fromkeys(todo, 0)
        running: dict[Any, tuple[Any, Task]] = {}
        lost: list[Task] = []
        with track(f"{self.job.study.name} on {len(self.workers)} workers", total=len(todo), unit="units") as bar:
            idle = list(self.workers)
            while waiting or running:
                while idle and waiting:
                    worker, task = idle.pop(), waiting.pop(0)
                    running[worker.work.remote(task[0].as_list(), task[1])] = (worker, task)
                done, _ = self.ray.wait(list(running), num_returns=1, timeout=_LOOK)
                if not done and not any(node["Alive"] for node in self.ray.nodes()):
                    do = "give the same command again: it continues"
                    raise RankFailed("no machine of the Ray cluster is left", do=do)
                for reference in done:
                    worker, task = running.pop(reference)
                    try:
                        self.ray.get(reference)
                        self.workers[worker].append(task)
                        idle.append(worker)
                        bar.advance()
                    except self.ray.exceptions.RayActorError as error:
                        tries[task] += 1
                        if tries[task] >= TRIES:
                            raise RanksLost(task[1] or task[0].name, error) from error
                        lost += self.workers.pop(worker)  # finished, and on disk
                        waiting.append(task)
                        idle.append(self._hire())
            return self._added(lost)

    def _added(self, lost: list[Task]) -> Collected:
        """One state from each worker that is alive, and those of units whose worker died, from disk."""
        total: Collected = {}
        with_work = [worker for worker, tasks in self.workers.items() if tasks]
        for worker in with_work:
            try:
                _add(total, self.ray.get(worker.sums.remote()), self.job)
            except self.ray.exceptions.RayActorError:
                lost += self.workers[worker]
        if lost:  # finished units are read back from disk, not run again
            fresh = self.make.remote(*self.order)
            for unit, label in lost:
                self.ray.get(fresh.work.remote(unit.as_list(), label))
            _add(total, self.ray.get(fresh.sums.remote()), self.job)
        return self._in_order(total)

    def _in_order(self, total: Collected) -> Collected:
        labels = self.job.study.labels(self.job.settings) if self.job.study.labels is not None else list(total)
        return {label: total[label] for label in labels if label in total}


class _Worker:
    """One process: a job of the same study, whose sums grow with every unit."""

    def __init__(self, name: str, settings: Mapping[str, Any], machine: Mapping[str, Any], folder: str | None) -> None:
        from pathlib import Path

        from anisoscope.runs.job import Job
        from anisoscope.runs.settings import Machine
        from anisoscope.runs.study import find_study

        study = find_study(name)
        self.job = Job(
            study,
            study.settings.check(settings, command=name),
            Machine.check({**machine, "engine": "local"}, command=name),
            None if folder is None else Path(folder),
            opened={},
        )
        self.total: Collected = {}

    def work(self, unit: list, only: str | None) -> None:
        """Collect one unit and add its sums."""
        self.job.unit, self.job.only = Unit.of_list(unit) if only is None else None, only
        assert self.job.study.collect is not None
        for label, part in self.job.study.collect(self.job).items():
            add_part(self.total, label, part)

    def sums(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], list[str]]:
        """All sums of this worker, what is known about them, what it read and what it has to say."""
        from anisoscope.runs.work.collected import state_of

        about = {label: part.about for label, part in self.total.items()}
        return state_of(self.total), about, self.job.inputs, [*self.job.notes, *self.job.source_notes()]


def _add(total: Collected, found: Any, job: Job) -> None:
    """Add the sums of one worker to those of the others."""
    from anisoscope.runs.work.collected import load_parts

    state, about, inputs, notes = found
    parts = load_parts(state, list(about), job.study.kinds())
    for label, part in parts.items():
        part.about = about[label]
        add_part(total, label, part)
    job.inputs.update(inputs)
    job.notes += [note for note in notes if note not in job.notes]
