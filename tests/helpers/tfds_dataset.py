"""Small tfds datasets, prepared without TensorFlow."""

import pytest


def write(folder, name, features, splits):
    """Prepare a dataset in a folder; without tfds, skip the test.

    Args:
      name: in camel case; tfds reads it in snake case.
      features: `features(tfds.features)`, features by name.
      splits: lists of examples, by the split's name.
    """
    tfds = pytest.importorskip(
        "tensorflow_datasets", reason="the extra tfds is not installed"
    )

    def info(self):
        by_name = tfds.features.FeaturesDict(features(tfds.features))
        return tfds.core.DatasetInfo(builder=self, features=by_name)

    def split_generators(self, dl_manager):
        return {split: enumerate(examples) for split, examples in splits.items()}

    members = {
        "__module__": __name__,
        "VERSION": tfds.core.Version("1.0.0"),
        "_info": info,
        "_split_generators": split_generators,
        "_generate_examples": lambda self: None,  # Splits have their examples already.
    }
    builder = type(name, (tfds.core.GeneratorBasedBuilder,), members)
    builder(data_dir=str(folder), file_format="array_record").download_and_prepare()


def texts(features):
    """One feature, "text"."""
    return {"text": features.Text()}
