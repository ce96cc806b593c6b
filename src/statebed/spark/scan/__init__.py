"""Native scan: tasks read the files of a micro-batch with Arrow, so that no row passes through the JVM.

Spark still decides which files a batch has, and remembers them in its checkpoint. A scan is chosen if every step before
the first operator can be written in statebed's expressions (`programs`). Whatever Arrow might read differently from
Spark's own reader is refused (`parquet_reader`), and Spark reads the batch instead.
"""
