"""The formats of files: segments, deltas, native files and manifests."""
