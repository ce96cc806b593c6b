"""The interactive SQL shell: `statebed sql` without a file, `-e`, and statements from a pipe."""
