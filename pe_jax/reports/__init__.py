"""What finished runs are worth: scores, comparisons, tables, properties, and exports."""
