"""Checkpoints: storage, segment files, manifests, recovery in the task, coordination on the driver.

A task calls `claim` and `find_restore_point`, restores through `handles_for`, and at its end writes a
segment file and a manifest, whose path it acknowledges.  On the driver a `CheckpointCoordinator` publishes a
checkpoint from the acknowledgements of all tasks of an epoch.  Nothing here imports PySpark.
"""
