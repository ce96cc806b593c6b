"""State and its history as values to look at: jobs, epochs, operators, tables, sinks. Nothing here writes."""
