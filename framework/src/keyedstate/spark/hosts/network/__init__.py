"""Connections between tasks and hosts: frames, the TCP port, its challenge, seals and TLS."""
