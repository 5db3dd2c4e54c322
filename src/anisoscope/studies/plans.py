"""Which study a plan's `command` names: the one place that knows them all."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from anisoscope.errors import UsageError
from anisoscope.runs import toml
from anisoscope.runs.measurement import Measurement
from anisoscope.runs.store import Existing

# command: (module of studies, settings class, function)
STUDIES = {
    "vectors": ("vectors", "VectorsSettings", "measure_files"),
    "calibrate": ("calibrate", "CalibrateSettings", "calibrate_files"),
    "null": ("null", "NullSettings", "null_study"),
    "measure": ("measure.study", "MeasureSettings", "measure_models"),
    "attention": ("attention.study", "AttentionSettings", "attention_study"),
    "sweep": ("sweep.study", "SweepSettings", "sweep_series"),
    "vocabulary": ("vocabulary", "VocabularySettings", "measure_vocabularies"),
    "final-norm": ("final_norm.study", "FinalNormSettings", "measure_final_norms"),
    "intervene": ("intervene.study", "InterveneSettings", "intervene_model"),
    "variants": ("variants.study", "VariantsSettings", "run_variants"),
    "block": ("block.study", "BlockPlan", "run_blocks"),
}


def perform(path: Path, *, out: Path | None = None, existing: Existing = "resume") -> Measurement:
    """Read a plan, check it and carry it out."""
    plan = toml.load(path)
    command = plan.get("command")
    if command not in STUDIES:
        raise UsageError("unknown command in the plan", where=path, got=command, expected=", ".join(STUDIES))
    unknown = set(plan) - {"command", "settings"}
    if unknown:
        raise UsageError("unknown table in the plan", where=path, got=", ".join(sorted(unknown)), expected="settings")
    module_name, settings_name, function_name = STUDIES[command]
    module = import_module(f"anisoscope.studies.{module_name}")
    settings = getattr(module, settings_name).check(plan.get("settings", {}), where=path)
    return getattr(module, function_name)(settings, out=out, existing=existing)
