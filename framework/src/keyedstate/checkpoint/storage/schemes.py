"""The file system of a URI: one that a plugin brings, or one of pyarrow's own."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.fs as pafs

from keyedstate.checkpoint.storage.process_plugins import registry_of
from keyedstate.errors import DuplicateProviderError, PluginError, StorageError, UnknownSchemeError
from keyedstate.options import STORAGE_OPTIONS, Configuration
from keyedstate.plugins import Provider

HOOK = "keyedstate_checkpoint_storage"
KNOWN_SCHEMES = ("file", "s3", "gs", "gcs", "hdfs", "viewfs", "abfs", "abfss")
#: Names of pyarrow's file systems, and of those of fsspec inside one, that are object stores.
_OBJECT_STORES = ("s3", "gcs", "abfs")
_FSSPEC_OBJECT_STORE = re.compile(r"py::fsspec\+\W*(?:s3|s3a|gs|gcs|abfs|abfss|adl|az|oss|oci)\b")
# At least two characters: a single letter is a drive.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
_PASSWORD = re.compile(
    r"(//[^/@:]*:)[^/@]*@|([?&][^=&]*(?:key|secret|token|password|signature)[^=&]*=)[^&]*", re.IGNORECASE
)


def scheme_of(uri: str) -> str | None:
    """Return the scheme of a URI in lower case; None for a plain path."""
    found = _SCHEME.match(uri)
    return None if found is None else found[1].lower()


def without_password(uri: str) -> str:
    """Return a URI, or a text that contains one, without passwords."""
    return _PASSWORD.sub(lambda found: f"{found[1]}***@" if found[1] else f"{found[2]}***", uri)


def reason_of(error: BaseException) -> str:
    """Return an error's own message on one line, without passwords."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(without_password(text).split()).rstrip(".")


def publishes_with_close(filesystem: pafs.FileSystem) -> bool:
    """Return whether a file is invisible until its stream is closed."""
    if isinstance(filesystem, pafs.SubTreeFileSystem):
        return publishes_with_close(filesystem.base_fs)
    return (
        filesystem.type_name in _OBJECT_STORES or _FSSPEC_OBJECT_STORE.match(filesystem.type_name) is not None
    )


def is_python(filesystem: pafs.FileSystem) -> bool:
    """Return whether a plugin wrote a file system in Python."""
    if isinstance(filesystem, pafs.SubTreeFileSystem):
        return is_python(filesystem.base_fs)
    return isinstance(filesystem, pafs.PyFileSystem)


def open_filesystem(uri: str, config: Configuration) -> tuple[pafs.FileSystem, str]:
    """Return the file system of a URI, which has a scheme, and the path in it.

    Raises as `CheckpointStorage.open` and `registry_of`, and `DuplicateProviderError` where several plugins
    have the scheme, and ``plugins.prefer`` names none or more than one of them.
    """
    scheme = scheme_of(uri)
    assert scheme is not None
    unusable: list[PluginError] = []
    claimed = _ask_plugins(uri, scheme, config, unusable)
    if claimed is not None:
        return claimed
    try:
        filesystem, root = _open_s3(uri) if scheme == "s3" else pafs.FileSystem.from_uri(uri)
    except (OSError, ImportError, ValueError, pa.ArrowException) as error:
        if scheme in KNOWN_SCHEMES:
            raise StorageError(without_password(uri), "open", reason_of(error)) from error
        others = [str(refusal) for refusal in unusable]
        raise UnknownSchemeError(
            without_password(uri), scheme=scheme, known=KNOWN_SCHEMES, unusable=others
        ) from error
    return filesystem, root


def _open_s3(uri: str) -> tuple[pafs.FileSystem, str]:
    """Open an S3 URI so that a small object is written in one request, not in the three of an upload."""
    option = "allow_delayed_open"
    if option not in uri:
        try:
            opened: tuple[pafs.FileSystem, str] = pafs.FileSystem.from_uri(
                f"{uri}{'&' if '?' in uri else '?'}{option}=true"
            )
            return opened
        except pa.ArrowInvalid as error:
            # Older versions of pyarrow do not take it from a URI; other mistakes are reported below.
            if option not in str(error):
                raise
    opened = pafs.FileSystem.from_uri(uri)
    return opened


def _ask_plugins(
    uri: str, scheme: str, config: Configuration, unusable: list[PluginError]
) -> tuple[pafs.FileSystem, str] | None:
    registry = registry_of(config)
    options = dict(config[STORAGE_OPTIONS])
    claims: list[tuple[Provider, tuple[pafs.FileSystem, str]]] = []
    for provider, call in registry.callers(HOOK, unusable):
        try:
            answers = call(uri=uri, options=dict(options))
        except Exception as error:  # whatever a stranger's function raises
            reason = f"the hook {HOOK} of {provider} failed with {type(error).__name__}: {reason_of(error)}"
            raise StorageError(without_password(uri), "open", reason) from error
        claims += [(provider, _checked(uri, provider, answer)) for answer in answers]
    if len(claims) > 1:
        preferred = registry.preferred([provider for provider, _ in claims])
        chosen = [claim for claim in claims if claim[0] in preferred]
        if len(chosen) != 1:
            names = [str(provider) for provider, _ in claims]
            raise DuplicateProviderError("scheme", scheme, names)
        claims = chosen
    return claims[0][1] if claims else None


def _checked(uri: str, provider: Provider, answer: object) -> tuple[pafs.FileSystem, str]:
    if isinstance(answer, tuple) and len(answer) == 2:
        filesystem, root = answer
        if isinstance(filesystem, pafs.FileSystem) and isinstance(root, str):
            return filesystem, root
    shown = type(answer).__name__
    if isinstance(answer, tuple):
        shown = f"({', '.join(type(part).__name__ for part in answer)})"
    reason = f"the hook {HOOK} of {provider} returned {shown} and not a pyarrow file system and a path"
    raise StorageError(without_password(uri), "open", reason)
