"""``keyedstate demo``: all flights of a year through keyed state on Spark, killed half way and continued.

`flights` makes the input, `functions` and `job` are the streaming job, `batch_job` asks plain Spark for the
same answer, and `watch` runs, kills and compares. Each of the jobs is a process of its own.
"""
