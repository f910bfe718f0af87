"""The config class of each task, by name; a run imports only that of its task."""

GLUE_TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")

# Runs that hold an encoder, which others start from.
ENCODERS = {
    "pretraining": "pe_jax.trainer.configs.pretraining:PretrainingConfig",
    "distillation": "pe_jax.trainer.configs.distill_positions:DistillationConfig",
}
FINETUNING = {
    **dict.fromkeys(GLUE_TASKS, "pe_jax.trainer.configs.finetuning:FinetuningConfig"),
    "squad": "pe_jax.trainer.configs.finetuning:SquadConfig",
    "classification": "pe_jax.trainer.configs.finetuning:ClassificationConfig",
    "tagging": "pe_jax.trainer.configs.finetuning:TaggingConfig",
}
TRAINING = {**ENCODERS, **FINETUNING}
EVALUATIONS = {
    "export": "pe_jax.trainer.configs.export:ExportConfig",
    "lengths": "pe_jax.trainer.configs.lengths:LengthsConfig",
    "properties": "pe_jax.trainer.configs.properties:PropertiesConfig",
    "sweep": "pe_jax.trainer.configs.sweep:SweepConfig",
    "tables": "pe_jax.trainer.configs.tables:TablesConfig",
}
CONFIGS = {**TRAINING, **EVALUATIONS}
