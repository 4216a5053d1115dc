"""The metrics of epochs for Prometheus."""
