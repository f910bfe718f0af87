"""Every key of a pretraining config, with its default. The experiments change what they need."""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def pretraining() -> ConfigDict:
    config = ConfigDict()
    config.task = "pretraining"
    config.seed = 0  # Initial parameters, dropout and data order.
    config.init = ""  # The workdir of a run to start from; its position encoding may be another.
    config.parallel = "jit"  # Or "fsdp", the state split over devices; "pmap", mapped per device.

    config.model = ConfigDict()
    config.model.size = "base"  # tiny, mini, small, medium, base, large.
    config.model.num_layers = placeholder(int)  # These four, where given, replace the size's own.
    config.model.hidden_size = placeholder(int)
    config.model.num_heads = placeholder(int)
    config.model.intermediate_size = placeholder(int)
    config.model.position = "learned_absolute"  # See the README's table.
    config.model.clip = 64  # Relative offsets are clipped to -clip .. clip.
    config.model.sinusoid_scale = 1.0  # Of absolute ones; from scratch 0.03, as loud as the words.
    config.model.max_length = 512  # Rows of a learned absolute table.
    config.model.dropout_rate = 0.1
    config.model.attention_dropout_rate = 0.1
    config.model.initializer_stddev = 0.02  # BERT's; about 1/sqrt(hidden_size) suits small models.
    config.model.dtype = "float32"  # Of the computation; or "bfloat16".
    config.model.attention = "auto"  # Or naive, buckets, rotation, fused: see docs/performance.md.
    config.model.scan_layers = False  # One program for all layers: compiles faster.
    config.model.remat = "none"  # Or "dots", "full": less memory, more computing.

    config.data = ConfigDict()
    config.data.source = "pydoc"  # Or a path or glob of .txt / .jsonl (.gz, .xz); tfds:NAME:SPLIT.
    config.data.validation = ""  # Another source; empty holds out documents of `source`.
    config.data.held_out = 0.05  # The fraction held out, where `validation` is empty.
    config.data.feature = "text"  # The key of the text in JSON lines and tfds examples.
    config.data.data_dir = ""  # Where tfds datasets lie; empty means tfds's default.
    config.data.vocab = ""  # A vocab.txt or tokenizer.json; empty trains one on `source`.
    config.data.vocab_size = 30_522  # Of a trained vocabulary.
    config.data.mask_rate = 0.15
    config.data.short_probability = 0.1  # How often an example is cut to a random shorter length.
    config.data.workers = 0  # Processes that make batches; 0 makes them in a thread.
    config.data.cache_dir = ""  # Tokenized text; empty means ~/.cache/pe_jax.

    # Two stages, as in BERT: short sequences, then long ones, with one optimizer state and one
    # learning rate schedule. Give `steps` or `epochs`; neither leaves the stage out.
    config.stage1 = _stage(length=128, batch_size=64, max_predictions=20)
    config.stage2 = _stage(length=512, batch_size=64, max_predictions=77)

    config.optimizer = ConfigDict()
    config.optimizer.name = "adamw"  # Or "lamb", for batches of thousands of sequences.
    config.optimizer.learning_rate = 1e-4
    config.optimizer.frequency_learning_rate = placeholder(float)  # Default: the same.
    config.optimizer.warmup = 0.1  # The fraction of all steps.
    config.optimizer.weight_decay = 0.01
    config.optimizer.b1 = 0.9
    config.optimizer.b2 = (
        0.999  # BERT's; 0.98 forgets the large first gradients within a short run.
    )
    config.optimizer.epsilon = 1e-6
    config.optimizer.clip_norm = 1.0  # 0 means no clipping.

    config.log_every = 100
    config.eval_every = 1_000
    config.eval_examples = 1_024
    config.checkpoint_every = 1_000
    config.keep_checkpoints = 3
    return config


def _stage(**values: int) -> ConfigDict:
    stage = ConfigDict(values)
    stage.steps = 0
    stage.epochs = 0.0
    stage.accumulation = 1  # Micro-batches a step: the memory of one, the result of all.
    return stage
