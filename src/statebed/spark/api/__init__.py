"""Classes that users of Spark work with: jobs, streams, queries, and state as a data source."""
