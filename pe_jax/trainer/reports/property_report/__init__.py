"""The property report: properties of position encodings, measured and plotted, part by part."""
