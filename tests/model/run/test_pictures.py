"""Pictures are opened as they are meant to be seen, or refused before they are decoded."""

import io
import struct
import zlib
from base64 import b64encode

import numpy as np
import pytest
from PIL import Image

from attnscope.base.errors import AttnscopeError, FileError, OptionError
from attnscope.model.answers.segments.chat import source_of
from attnscope.model.run.pictures import open_picture


def saved(image, path, **options):
    image.save(path, **options)
    return path


def huge(side):
    """A PNG whose header states a size, without as many pixels."""

    def part(name, content):
        body = name + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    head = part(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + part(b"IDAT", zlib.compress(b"\0")) + part(b"IEND", b"")


@pytest.mark.parametrize("side", [12_000, 30_000])
def test_a_picture_of_too_many_pixels_is_refused_without_a_warning(tmp_path, recwarn, side):
    path = tmp_path / "a.png"
    path.write_bytes(huge(side))
    url = f"data:image/png;base64,{b64encode(huge(side)).decode()}"
    for read in (lambda: open_picture(path), lambda: source_of({"type": "image", "url": url})):
        with pytest.raises(FileError, match="is too large"):
            read()
    assert not recwarn.list


def test_a_picture_is_turned_as_its_exif_says(tmp_path):
    image = Image.new("RGB", (30, 20))
    exif = Image.Exif()
    exif[0x0112] = 6
    path = saved(image, tmp_path / "a.jpg", exif=exif)
    assert open_picture(path).size == (20, 30)


@pytest.mark.parametrize("damaged", [b"\xff\xff\xff\xff", b"\0\0\0\1"])
def test_a_picture_with_damaged_exif_is_not_turned(tmp_path, caplog, damaged):
    exif = Image.Exif()
    exif[0x0112] = 6
    content = io.BytesIO()
    Image.new("RGB", (30, 20)).save(content, "JPEG", exif=exif)
    whole = content.getvalue()
    at = whole.index(b"Exif\0\0") + 10  # the place of the first list of fields
    path = tmp_path / "a.jpg"
    path.write_bytes(whole[:at] + damaged + whole[at + 4 :])
    url = f"data:image/jpeg;base64,{b64encode(path.read_bytes()).decode()}"
    for picture in (path, source_of({"type": "image", "url": url})):
        assert open_picture(picture).size == (30, 20)


@pytest.mark.parametrize("mode", ["I;16", "I"])
def test_a_grey_picture_of_16_bits_is_scaled(tmp_path, mode, caplog):
    grey = np.linspace(0, 65535, 24).reshape(4, 6).astype("u2" if mode == "I;16" else "i4")
    path = saved(Image.fromarray(grey), tmp_path / "a.tiff")
    with Image.open(path) as opened:
        assert opened.mode == mode
    with caplog.at_level("INFO", "attnscope"):
        shown = np.asarray(open_picture(path))
    np.testing.assert_array_equal(shown[..., 1], (grey / 257).round())
    assert "has 16 bits a pixel, which are scaled to 8 bits" in caplog.text


def test_a_grey_picture_of_floats_is_scaled():
    grey = np.linspace(0, 1, 24, dtype="f4").reshape(4, 6)
    shown = np.asarray(open_picture(Image.fromarray(grey)))
    np.testing.assert_array_equal(shown[..., 0], (grey * 255).round())
    with pytest.raises(OptionError, match=r"values from 0 to 9,000: which of them is white"):
        open_picture(Image.fromarray(grey * 9000))


def test_a_closed_image_is_refused():
    image = Image.new("RGB", (3, 2))
    image.close()
    with pytest.raises(AttnscopeError, match="the image of pillow cannot be read"):
        open_picture(image)
