"""Manager of all tables of one subtask: registered, restored, written, checkpointed and compacted together."""
