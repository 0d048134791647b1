"""Open a picture: a file, its bytes, or an image of pillow; its size is checked before it is decoded."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from attnscope.base.errors import (
    AttnscopeError,
    FileError,
    ModelError,
    OptionError,
    class_name,
    first_line,
    is_out_of_memory,
)
from attnscope.base.process.devices import check_memory
from attnscope.base.process.files import refuse_pipe
from attnscope.base.process.progress import notify

BYTES_OF_A_PIXEL = 32
"""What a pixel takes at most until a processor has resized it: several copies, some in floats."""

SMALLER = "a smaller picture: magick IN -resize 2000x2000 OUT"


def open_picture(picture: Any, name: str | None = None) -> Any:
    """Open a picture as it is meant to be seen: in RGB, turned as its camera was held.

    Args:
        name: its name in messages; None: that of the file.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ModelError(
            "pillow, which reads pictures, is not installed.",
            hint="pip install 'attnscope[image]'",
        ) from error
    if isinstance(picture, Image.Image):
        with _as_option_error():
            return _shown(picture, name or "the picture")
    if not isinstance(picture, (str, Path, bytes)):
        raise OptionError(
            f"a picture is a file or an image of pillow, but this is a {class_name(picture)}.",
            hint="PIL.Image.fromarray(…)",
        )
    path = name or str(picture)
    if not isinstance(picture, bytes):
        refuse_pipe(picture)
    with as_file_error(path), opened_image(picture, path) as opened:
        return _shown(opened, path)


@contextmanager
def opened_image(picture: str | Path | bytes, name: str) -> Iterator[Any]:
    """Open a file of pillow without decoding it; raise a FileError if it has too many pixels."""
    from PIL import Image

    source = BytesIO(picture) if isinstance(picture, bytes) else picture
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as of too many pixels, which are an error here
        with Image.open(source) as opened:
            _check_pixels(opened.size, name)
            yield opened


def _check_pixels(size: tuple[int, int], name: str) -> None:
    """Raise an error unless a picture of a width and a height can be decoded."""
    from PIL import Image

    width, height = size
    most = Image.MAX_IMAGE_PIXELS
    if most is not None and width * height > most:
        raise FileError(
            f"{name} is too large: {width:,} × {height:,} are {width * height:,} pixels, and at most"
            f" {most:,} are read.",
            hint=SMALLER,
        )
    check_memory(width * height * BYTES_OF_A_PIXEL, "cpu", SMALLER)


@contextmanager
def as_file_error(path: str) -> Iterator[None]:
    """Turn what pillow raises while it reads a file into a FileError."""
    from PIL import Image, UnidentifiedImageError

    try:
        yield
    except AttnscopeError:
        raise
    except Image.DecompressionBombError as error:
        raise FileError(
            f"{path} is too large: {first_line(error).rstrip('.')}.", hint=SMALLER
        ) from error
    except UnidentifiedImageError as error:
        raise FileError(
            f"{path} is not a picture that pillow can read.", hint="a .png or .jpg file"
        ) from error
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or first_line(error)}.") from error
    except Exception as error:  # for a damaged image, pillow raises half a dozen types
        if is_out_of_memory(error):
            raise
        raise FileError(f"{path} is a damaged picture: {first_line(error).rstrip('.')}.") from error


@contextmanager
def _as_option_error() -> Iterator[None]:
    """Turn what pillow raises of an image that is closed or damaged into an OptionError."""
    try:
        yield
    except OptionError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        what = first_line(error).rstrip(".")
        raise OptionError(
            f"the image of pillow cannot be read: {what}.", hint="an open image"
        ) from error


def _shown(image: Any, name: str) -> Any:
    """Return an image in RGB of 8 bits, turned as its EXIF says."""
    from PIL import ImageOps

    image.load()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            turned = ImageOps.exif_transpose(image)
    except Exception as error:  # a dozen types, for damaged EXIF
        if is_out_of_memory(error):
            raise
        notify(f"the EXIF data of {name} are damaged, so it is not turned as they say")
        turned = image.copy()
    return _in_8_bits(turned, name).convert("RGB")


def _in_8_bits(image: Any, name: str) -> Any:
    """Scale a grey picture of 16 bits, or of floats, to 8 bits: pillow would clip it."""
    if not image.mode.startswith(("I", "F")):
        return image
    import numpy as np
    from PIL import Image

    values = np.asarray(image, dtype=np.float64)
    least, largest = float(values.min()), float(values.max())
    if image.mode.startswith("I;16") or (image.mode == "I" and 255 < largest <= 65535):
        white, what = 65535.0, "16 bits a pixel"
    else:
        white, what = (1.0, "floats to 1") if image.mode == "F" and largest <= 1 else (255.0, "")
    if not 0 <= least <= largest <= white:
        raise OptionError(
            f"{name} has values from {least:,g} to {largest:,g}: which of them is white is not known.",
            hint="a picture of 8 bits a pixel",
        )
    if what:
        notify(f"{name} has {what}, which are scaled to 8 bits")
    return Image.fromarray((values * (255 / white)).round().astype(np.uint8))
