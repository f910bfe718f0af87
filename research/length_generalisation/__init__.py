"""Length generalisation: models trained on short strings, tested on longer ones.

Ruoss et al. 2023, "Randomized Positional Encodings Boost Length Generalization of Transformers".
Kazemnejad et al. 2023, "The Impact of Positional Encoding on Length Generalization in
Transformers".
"""
