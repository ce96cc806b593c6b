"""Classes for users of Spark: jobs, streams, queries, and state as a data source."""
