"""The paper's comparison as a study: runs that are planned, executed, measured and judged."""
