"""Reports on finished runs: scores, comparisons, tables, properties, and exports."""
