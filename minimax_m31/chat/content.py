"""Content of a message: text, or a list of text, image and video parts.

Parts are checked and reduced to what templates read: {"type": "text", "text": ...}, {"type":
"image"}, {"type": "video"}. What the media parts pointed at is kept, in order, for the vision side.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from typing import Any

from ..errors import InvalidRequestError

_IMAGE_TYPES = ("image_url", "input_image", "image")
_VIDEO_TYPES = ("video_url", "video")
_TEXT_TYPES = ("text", "input_text")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


@dataclasses.dataclass
class MediaPart:
    """One image or video of the conversation, in the order of its placeholder in the prompt."""

    kind: str  # "image" or "video"
    source: Any  # a URL or path, or the object given (bytes, array, PIL image)
    options: dict[str, Any]  # detail, max_long_side_pixel, fps: what stood beside the URL
    param: str  # where it came from, for error messages


def normalise_content(
    content: Any, param: str, media: list[MediaPart], remote_media: bool
) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)):
        raise InvalidRequestError(
            f"{param} must be a string or a list of parts, not {type(content).__name__}",
            param=param,
            value=content,
        )
    return [_part(part, f"{param}[{j}]", media, remote_media) for j, part in enumerate(content)]


def _part(part: Any, param: str, media: list[MediaPart], remote_media: bool) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, Mapping):
        raise InvalidRequestError(
            f"{param} must be a dict with a 'type', not {type(part).__name__}",
            param=param,
            value=part,
        )
    kind = part.get("type")
    if kind in _TEXT_TYPES:
        text = part.get("text")
        if not isinstance(text, str):
            raise InvalidRequestError(
                f"{param}.text must be a string", param=f"{param}.text", value=text
            )
        return {"type": "text", "text": text}
    if kind in _IMAGE_TYPES or kind in _VIDEO_TYPES:
        media.append(_media(part, kind, param, remote_media))
        return {"type": media[-1].kind}
    known = ", ".join(map(repr, _TEXT_TYPES + _IMAGE_TYPES + _VIDEO_TYPES))
    raise InvalidRequestError(
        f"{param}.type={kind!r}: expected one of {known}", param=f"{param}.type", value=kind
    )


def _media(part: Mapping[str, Any], kind: str, param: str, remote_media: bool) -> MediaPart:
    medium = "image" if kind in _IMAGE_TYPES else "video"
    # {"type": "image_url", "image_url": {"url": ...}} or the object itself under the name of the
    # type
    field = {"input_image": "image_url"}.get(kind, kind)
    given = part.get(field, part.get(medium, part.get("url")))
    options: dict[str, Any] = {}
    if isinstance(given, Mapping):
        options = {key: value for key, value in given.items() if key != "url"}
        given = given.get("url")
    where = f"{param}.{medium}_url.url"
    if given is None or (isinstance(given, (str, bytes)) and not given):
        raise InvalidRequestError(
            f"{where} is missing: give a data:, file: or https: URL (or the {medium} itself with "
            f"type {medium!r})",
            param=where,
            value=given,
        )
    if isinstance(given, os.PathLike):
        given = os.fspath(given)
    if isinstance(given, str):
        _check_url(given, where, remote_media)
    return MediaPart(medium, given, options, where)


def _check_url(url: str, param: str, remote_media: bool) -> None:
    found = _SCHEME.match(url)
    scheme = found[1].lower() if found else ""
    if scheme in ("data", "file") or (scheme == "" and os.path.isabs(url)):
        return
    shown = url if len(url) <= 80 else url[:77] + "..."
    if scheme == "https":
        if remote_media:
            return
        why = "network fetches are off: list the domain in allowed_media_domains, or pass the bytes"
    elif scheme:
        why = f"the scheme {scheme!r} is not supported: use data:, file: or https:"
    else:
        why = "a relative path is ambiguous: give an absolute path or a file: URL"
    raise InvalidRequestError(f"{param}={shown!r}: {why}", param=param, value=url)


def content_texts(content: str | list[dict[str, Any]]) -> list[str]:
    """The text runs of a normalised content."""
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content if part["type"] == "text"]
