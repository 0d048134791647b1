"""A video as frames: pictures in a list, an animated picture, or a file that a decoder reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.errors import FileError, OptionError, first_line, is_out_of_memory
from attnscope.models.tokenize import open_picture
from attnscope.process.files import refuse_pipe

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass
class Video:
    """A video that was read.

    Attributes:
        frames: all its frames, RGB.
        fps: its frames per second; None: not known.
        shown: the indices of the frames that the model reads, known once its processor was called.
    """

    frames: list[Image] = field(repr=False)
    fps: float | None = None
    shown: list[int] = field(default_factory=list)

    def metadata(self) -> dict[str, Any]:
        """Return what processors of transformers want to know of a video."""
        n_frame = len(self.frames)
        return {
            "total_num_frames": n_frame,
            "fps": self.fps,
            "duration": None if self.fps is None else n_frame / self.fps,
            "frames_indices": list(range(n_frame)),
        }


def open_video(video: Any) -> Video:
    """Read a video.

    Args:
        video: a list of pictures, files or images of pillow; an array, `n_frame height width 3`, of
            numbers to 255; or a file: an animated .gif, .png or .webp, or what a decoder that is
            installed can read.

    Raises:
        FileError: a file cannot be read.
        OptionError: it has no frames, or frames of several sizes.
    """
    if isinstance(video, (str, Path)):
        read = _of_file(Path(video))
    elif hasattr(video, "shape"):
        from PIL import Image

        read = Video([Image.fromarray(frame).convert("RGB") for frame in video])
    else:
        read = Video([open_picture(frame) for frame in video])
    sizes = sorted({frame.size for frame in read.frames})
    if len(sizes) != 1:
        has = "no frames" if not sizes else "frames of several sizes: "
        listed = ", ".join(f"{width}×{height}" for width, height in sizes[:3])
        raise OptionError(f"a video has {has}{listed}.", hint="frames of one size")
    return read


def _of_file(path: Path) -> Video:
    """Read a file: with pillow if it is an animated picture, or else with transformers' decoders."""
    from PIL import Image, ImageSequence, UnidentifiedImageError

    refuse_pipe(path)
    try:
        with Image.open(path) as opened:
            frames = [frame.convert("RGB") for frame in ImageSequence.Iterator(opened)]
            milliseconds = opened.info.get("duration")
        return Video(frames, 1000 / milliseconds if milliseconds else None)
    except UnidentifiedImageError:
        return _decoded(path)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or first_line(error)}.") from error


def _decoded(path: Path) -> Video:
    try:
        from transformers.video_utils import load_video

        array, metadata = load_video(str(path))  # type: ignore[arg-type]
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise FileError(
            f"{path} cannot be decoded as a video: {first_line(error).rstrip('.')}.",
            hint="a .gif file; or pip install av",
        ) from error
    from PIL import Image

    return Video([Image.fromarray(frame) for frame in array], metadata.fps)
