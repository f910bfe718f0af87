"""Every key of a config for training, with its default. Experiments override some of them."""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def pretraining() -> ConfigDict:
    config = ConfigDict()
    config.task = "pretraining"
    config.seed = 0  # Initial parameters, dropout and data order.
    config.init = ""  # A run to start from, its workdir, or a published BERT: docs/checkpoints.md.
    config.keep_position = True  # With init: its positions as well, where they fit; or new ones.
    # Or "fsdp", the state sharded; "pmap", mapped per device; "pmap_bfloat16", which exchanges
    # gradients in that dtype.
    config.parallel = "jit"

    config.model = ConfigDict()
    config.model.size = "base"  # tiny, mini, small, medium, base, large; with init: its own.
    config.model.num_layers = placeholder(int)  # These four, if given, replace the size's own.
    config.model.hidden_size = placeholder(int)
    config.model.num_heads = placeholder(int)
    config.model.intermediate_size = placeholder(int)
    config.model.position = "learned_absolute"  # With options: "rope(base=500)+alibi".
    config.model.max_length = 512  # Rows of a learned absolute table.
    config.model.dropout_rate = 0.1  # Of embeddings and of what each sublayer adds.
    config.model.attention_dropout_rate = 0.1  # Of the weights of attention.
    config.model.initializer_stddev = 0.02  # BERT's; about 1/sqrt(hidden_size) suits small models.
    config.model.dtype = "float32"  # The dtype to compute in; or "bfloat16".
    config.model.attention = "auto"  # Or naive, pairs, buckets, rotation, fused, kernel.
    config.model.scan_layers = False  # One program for all layers: compiles faster.
    config.model.remat = "none"  # Or "dots", "full": less memory, more computing.

    config.data = ConfigDict()
    # Or a path or glob of .txt / .jsonl (.gz, .xz); tfds:NAME:SPLIT; shards:FOLDER, tokenized text.
    config.data.source = "pydoc"
    config.data.validation = ""  # Another source; empty holds out documents of `source`.
    config.data.held_out = 0.05  # The fraction held out, where `validation` is empty.
    config.data.feature = "text"  # The key of the text in JSON lines and tfds examples.
    config.data.data_dir = ""  # Folder of tfds datasets; empty means tfds's default.
    config.data.vocab = ""  # vocab.txt or tokenizer.json; empty: init's, or one is trained.
    config.data.vocab_size = 30_522  # The size of a vocabulary that is trained.
    config.data.mask_rate = 0.15  # The fraction of tokens to predict.
    config.data.short_probability = 0.1  # How often an example is truncated to a random length.
    config.data.workers = 0  # Processes that make batches; 0 makes them in a thread.
    config.data.cache_dir = ""  # Tokenized text; empty means ~/.cache/pe_jax.

    # Two stages, as in BERT, or three: short sequences, then longer ones, with one optimizer state
    # and one learning rate schedule. Give `steps` or `epochs`; neither leaves the stage out.
    config.stage1 = _stage(length=128, batch_size=64, max_predictions=20)
    config.stage2 = _stage(length=512, batch_size=64, max_predictions=77)
    config.stage3 = _stage(length=512, batch_size=64, max_predictions=77)

    config.optimizer = _optimizer(learning_rate=1e-4)

    config.log_every = 100  # Steps, as the next ones; 0 at the end of a stage only.
    config.eval_every = 1_000  # On held-out text.
    config.eval_examples = 1_024  # Held-out examples.
    config.checkpoint_every = 1_000
    config.keep_checkpoints = 3  # The newest.
    return config


def _stage(**values: int) -> ConfigDict:
    stage = ConfigDict(values)
    stage.steps = 0
    stage.epochs = 0.0  # Instead of steps.
    stage.accumulation = 1  # Micro-batches a step: the memory of one, the result of all.
    return stage


def finetuning() -> ConfigDict:
    """Keys that GLUE and SQuAD share."""
    config = ConfigDict()
    config.seeds = (0, 1, 2, 3, 4)  # Seeds of heads, dropout and data order; one program.
    config.init = ""  # The workdir of a pretraining run, or a published BERT.
    config.resize = ""  # For inputs longer than a learned table: "interpolate" or "repeat".

    config.model = ConfigDict()  # Keys that are given replace the pretrained model's.
    config.model.position = placeholder(str)
    config.model.dropout_rate = placeholder(float)
    config.model.attention_dropout_rate = placeholder(float)
    config.model.dtype = placeholder(str)
    config.model.attention = placeholder(str)
    config.model.scan_layers = placeholder(bool)
    config.model.remat = placeholder(str)

    config.data = ConfigDict()
    config.data.data_dir = ""  # Folder of tfds datasets; empty means tfds's default.
    config.data.length = 128  # Tokens of the longest inputs.
    config.data.buckets = (16, 32, 64, 96)  # Shorter inputs are padded to these; () for none.
    config.data.batch_size = 32
    config.data.eval_batch_size = 64
    config.data.held_out = 0.0  # The fraction of the training data kept to select by, see below.

    config.epochs = 3.0
    config.steps = 0  # If given, instead of epochs.
    config.accumulation = 1  # Micro-batches a step: the memory of one, the result of all.
    config.optimizer = _optimizer(learning_rate=2e-5)

    # Which scores count: of the "last" step, of each seed's "best", or of the step that is best on
    # the training data that is "held_out".
    config.select = "last"
    config.log_every = 100
    config.eval_every = 0  # Steps; 0 scores at the end only.
    config.checkpoint_every = 0  # Steps; 0 saves after every tenth of them.
    config.keep_checkpoints = 1
    return config


def _optimizer(learning_rate: float) -> ConfigDict:
    optimizer = ConfigDict()
    optimizer.name = "adamw"  # Or "lamb", for batches of thousands of sequences.
    optimizer.learning_rate = learning_rate  # The highest: it rises, then falls to 0.
    optimizer.frequency_learning_rate = placeholder(float)  # Of sinusoids; default: the same.
    optimizer.warmup = 0.1  # The fraction of all steps.
    optimizer.weight_decay = 0.01
    optimizer.b1 = 0.9
    optimizer.b2 = 0.999  # BERT's; 0.98 forgets the large first gradients within a short run.
    optimizer.epsilon = 1e-6
    optimizer.clip_norm = 1.0  # 0 means no clipping.
    return optimizer
