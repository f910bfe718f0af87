"""The config class of each task, by name; a run imports only that of its task."""

GLUE_TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")

# Runs that hold an encoder, which others start from.
ENCODERS = {
    "pretraining": "pe_jax.configs.pretraining:PretrainingConfig",
    "distillation": "pe_jax.configs.distill_positions:DistillationConfig",
}
FINETUNING = {
    **dict.fromkeys(GLUE_TASKS, "pe_jax.configs.finetuning:FinetuningConfig"),
    "squad": "pe_jax.configs.finetuning:SquadConfig",
}
TRAINING = {**ENCODERS, **FINETUNING}
EVALUATIONS = {
    "export": "pe_jax.configs.export:ExportConfig",
    "lengths": "pe_jax.configs.lengths:LengthsConfig",
    "properties": "pe_jax.configs.properties:PropertiesConfig",
    "sweep": "pe_jax.configs.sweep:SweepConfig",
    "tables": "pe_jax.configs.tables:TablesConfig",
}
CONFIGS = {**TRAINING, **EVALUATIONS}
