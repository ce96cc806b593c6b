"""Plan of a job from a flow and its DataFrames: topology, routing, memory, checks against stored state."""
