"""Who is notified of an operator's checkpoints: plugins, and reporters of metrics."""
