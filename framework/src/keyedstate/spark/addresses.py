"""Addresses of Hadoop's file systems as others name them."""

from __future__ import annotations

import re

_HADOOP_S3 = re.compile(r"s3[an]://")
_HADOOP_LOCAL = re.compile(r"\Afile:(//)?(?=/)")


def without_hadoop_scheme(uri: str) -> str:
    """Return the name of a place outside of Hadoop: ``s3://`` for ``s3a://``, a path for ``file:``."""
    return _HADOOP_LOCAL.sub("", _HADOOP_S3.sub("s3://", uri))
