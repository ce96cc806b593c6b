"""Epochs: the controller on the driver, the tasks on executors, and the reports between them."""
