"""A video as frames: pictures in a list, an animated picture, or a file that a decoder reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.errors import FileError, OptionError, class_name, first_line
from attnscope.models.tokenize import open_picture
from attnscope.process.devices import check_memory
from attnscope.process.files import refuse_pipe

if TYPE_CHECKING:
    from PIL.Image import Image


BYTES = 7
"""Bytes for each pixel of a frame: 4 of pillow's, and 3 in the array for the processor."""


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
            numbers to 255; or a file: an animated .gif, .png or .webp, or what PyAV can decode. One
            that was read before stays as it is.

    Raises:
        FileError: a file cannot be read.
        SizeError: its frames do not fit into the memory.
        OptionError: it is neither of these, or has no frames, or frames of several sizes.
    """
    if isinstance(video, Video):
        return video
    if isinstance(video, (str, Path)):
        read = _of_file(Path(video))
    elif hasattr(video, "shape"):
        from PIL import Image

        read = Video([Image.fromarray(frame).convert("RGB") for frame in video])
    elif isinstance(video, (list, tuple)):
        read = Video([open_picture(frame) for frame in video])
    else:
        raise OptionError(
            f"a video is a file, an array or a list of frames, but this is a {class_name(video)}.",
            hint="video=[[frame, …]]",
        )
    sizes = sorted({frame.size for frame in read.frames})
    if len(sizes) != 1:
        has = "no frames" if not sizes else "frames of several sizes: "
        listed = ", ".join(f"{width}×{height}" for width, height in sizes[:3])
        raise OptionError(f"a video has {has}{listed}.", hint="frames of one size")
    return read


def _of_file(path: Path) -> Video:
    """Read a file: with pillow if it is an animated picture, or else with PyAV."""
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
    """Decode a file with FFmpeg's decoders in PyAV, whether or not it says how many frames it has."""
    try:
        import av
    except ImportError as error:
        raise FileError(
            f"{path} needs PyAV, which decodes videos and is not installed here.",
            hint="pip install 'attnscope[video]'; or a .gif file",
        ) from error
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise FileError(f"{path} has no video in it.")
            stream = container.streams.video[0]
            fps = float(stream.average_rate) if stream.average_rate else None
            n_frame = stream.frames or (container.duration or 0) / av.time_base * (fps or 0)
            needed = round(n_frame) * stream.width * stream.height * BYTES
            check_memory(needed, "cpu", "a shorter video, or a smaller one")
            return Video([frame.to_image() for frame in container.decode(stream)], fps)
    except av.FFmpegError as error:
        raise FileError(f"{path} cannot be decoded as a video: {first_line(error)}.") from error
