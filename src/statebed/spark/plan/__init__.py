"""From a flow and its DataFrames to the plan of a job: topology, routing, memory, checks against stored state."""
