"""Stand-ins for the tools of docs/recipes.md: the signatures of the real ones, and a record of what they were given."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

Calls = list[tuple[str, Any]]


def stand_ins() -> tuple[dict[str, ModuleType], Calls]:
    """(modules by name, the calls they get: name and what was given)."""
    calls: Calls = []
    return {
        "mlflow": _module("mlflow", **_mlflow(calls)),
        "wandb": _module("wandb", **_wandb(calls)),
        "datasets": _module("datasets", Dataset=_dataset(calls)),
        "huggingface_hub": _module("huggingface_hub", HfApi=_hub(calls)),
    }, calls


def _module(name: str, **content: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(content)
    return module


def _mlflow(calls: Calls) -> dict[str, Any]:
    def set_experiment(experiment_name=None, experiment_id=None):
        calls.append(("set_experiment", experiment_name))

    @contextmanager
    def start_run(
        run_id=None, experiment_id=None, run_name=None, nested=False, parent_run_id=None, tags=None, description=None,
        log_system_metrics=None,
    ):  # fmt: skip
        calls.append(("start_run", run_name))
        yield
        calls.append(("end_run", run_name))

    def log_params(params, synchronous=None, run_id=None):
        calls.append(("log_params", params))

    def log_metrics(metrics, step=None, synchronous=None, run_id=None, timestamp=None):
        calls.append(("log_metrics", metrics))

    return {
        "set_experiment": set_experiment, "start_run": start_run, "log_params": log_params, "log_metrics": log_metrics,
    }  # fmt: skip


def _wandb(calls: Calls) -> dict[str, Any]:
    @contextmanager
    def init(entity=None, project=None, dir=None, id=None, name=None, notes=None, tags=None, config=None):
        calls.append(("init", (project, name, config)))
        yield SimpleNamespace(log=log)

    def log(data, step=None, commit=None):
        calls.append(("log", data))

    class Table:
        def __init__(
            self, columns=None, data=None, rows=None, dataframe=None, dtype=None, optional=True,
            allow_mixed_types=False, log_mode="IMMUTABLE",
        ):  # fmt: skip
            self.dataframe = dataframe

    return {"init": init, "Table": Table}


def _dataset(calls: Calls) -> type:
    class Dataset:
        @classmethod
        def from_pandas(cls, df, features=None, info=None, split=None, preserve_index=None):
            calls.append(("from_pandas", df))
            return cls()

        def push_to_hub(
            self, repo_id, config_name="default", set_default=None, split=None, data_dir=None, commit_message=None,
            commit_description=None, private=None, token=None,
        ):  # fmt: skip
            calls.append(("push_to_hub", repo_id))

    return Dataset


def _hub(calls: Calls) -> type:
    class HfApi:
        def create_repo(self, repo_id, *, token=None, private=None, repo_type=None, exist_ok=False):
            calls.append(("create_repo", (repo_id, repo_type)))

        def upload_file(
            self, *, path_or_fileobj, path_in_repo, repo_id, token=None, repo_type=None, revision=None,
            commit_message=None,
        ):  # fmt: skip
            calls.append(("upload_file", (path_in_repo, Path(path_or_fileobj).read_bytes())))

    return HfApi
